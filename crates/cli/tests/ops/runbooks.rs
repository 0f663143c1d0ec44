//! Whoever is woken by an alert finds what to do.

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    fs::read_to_string(root.join(name)).unwrap()
}

#[test]
fn every_alert_names_a_runbook_with_symptom_cause_and_commands() {
    let (alerts, page) = (read("deploy/prometheus/alerts.yml"), read("docs/operations.md"));
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 11, "{}", rules.len());
    for rule in rules {
        let name = rule.lines().next().unwrap().trim();
        let link = format!("runbook_url: docs/operations.md#{}", name.to_lowercase());
        assert!(rule.contains(&link), "{name} has no {link}");
        let section = page.split(&format!("\n### {name}\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("docs/operations.md has no runbook for {name}"));
        let section = section.split("\n#").next().unwrap();
        for part in ["Symptom", "Cause", "Commands"] {
            let text = section.lines().find_map(|line| line.strip_prefix(&format!("- **{part}:** ")));
            assert!(text.is_some_and(|text| text.len() > 20), "{name} has no {part}:\n{section}");
        }
        let commands = section.split("- **Commands:**").nth(1).unwrap();
        assert!(commands.matches('`').count() >= 2, "{name} names no command");
    }
}
