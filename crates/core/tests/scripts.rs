//! Golden scripts: every file of `testscripts/`, run through the real table.
//!
//! In:    files of blocks: commands, `---`, what they must print, an empty line. See `script/mod.rs` for the words.
//! Out:   a diff for each block that printed something else; with `UPDATE_SCRIPTS=1` the files are rewritten.
//! Never: knows a rule of the table. What is right stands in the scripts and was read before it was committed.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test may read files and its environment, and fails by panicking"
)]

mod script;

use std::fs;
use std::path::Path;

use script::Script;

/// One block of a script file.
struct Block {
    /// The lines above `---`, as they stand in the file.
    input: Vec<String>,
    /// The lines below.
    expected: Vec<String>,
}

#[test]
fn every_script_prints_what_it_promises() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts");
    let update = std::env::var("UPDATE_SCRIPTS").is_ok_and(|value| !value.is_empty());
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let mut failures = String::new();
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# "), "{name}: the first line says what the script claims");
        let (actual, diff) = run(&name, &text);
        if update {
            fs::write(&path, actual).unwrap();
        } else {
            failures.push_str(&diff);
        }
    }
    assert!(failures.is_empty(), "\n{failures}\nIf this is right: UPDATE_SCRIPTS=1, then read the changes.");
}

/// Runs one script; gives back the file as it would have to be, and the differences.
fn run(name: &str, text: &str) -> (String, String) {
    let mut script = Script::default();
    let (mut file, mut diffs) = (Vec::new(), String::new());
    for block in blocks(text) {
        let actual = script.block(&block.input).unwrap_or_else(|error| panic!("{name}: {error}"));
        if actual != block.expected {
            let marked = diff(&block.expected, &actual).join("\n");
            diffs.push_str(&format!("{name}:\n    {}\n---\n{marked}\n\n", block.input.join("\n    ")));
        }
        let input = block.input.into_iter();
        file.push(input.chain(["---".into()]).chain(actual).collect::<Vec<_>>().join("\n"));
    }
    (file.join("\n\n") + "\n", diffs)
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    loop {
        let input: Vec<String> = lines.by_ref().take_while(|line| *line != "---").map(String::from).collect();
        if input.iter().all(String::is_empty) {
            return blocks;
        }
        let expected = lines.by_ref().take_while(|line| !line.is_empty()).map(String::from).collect();
        blocks.push(Block { input, expected });
    }
}

/// The lines of both, in order: `-` for those that only were expected, `+` for those that only came.
fn diff(expected: &[String], actual: &[String]) -> Vec<String> {
    match (expected, actual) {
        ([], rest) => rest.iter().map(|line| format!("+{line}")).collect(),
        (rest, []) => rest.iter().map(|line| format!("-{line}")).collect(),
        ([same, expected @ ..], [first, actual @ ..]) if same == first => {
            let mut lines = vec![format!(" {same}")];
            lines.extend(diff(expected, actual));
            lines
        }
        ([missing, less @ ..], [_, ..]) if !actual.contains(missing) => {
            let mut lines = vec![format!("-{missing}")];
            lines.extend(diff(less, actual));
            lines
        }
        (_, [extra, less @ ..]) => {
            let mut lines = vec![format!("+{extra}")];
            lines.extend(diff(expected, less));
            lines
        }
    }
}

#[test]
fn a_diff_marks_what_is_missing_and_what_is_new() {
    let lines = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    assert_eq!(
        diff(&lines("a b c d"), &lines("a x c e")),
        lines(" a|-b|+x| c|-d|+e").join(" ").split('|').collect::<Vec<_>>()
    );
}
