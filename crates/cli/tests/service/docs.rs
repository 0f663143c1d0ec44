//! Every shell example of the README and of docs/, word for word. CONTRIBUTING.md has the convention.
//!
//! Each page has a network of its own, in which its service listens where the page says it does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::TempDir;

/// A page's examples, in order.
struct Page {
    name: String,
    /// Flags of its service; `None`: it starts what it needs itself.
    serve: Option<String>,
    blocks: Vec<Block>,
}

struct Block {
    line: usize,
    text: String,
    /// Why it is not run.
    no_run: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let mut page = Self {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            serve: Some(String::new()),
            blocks: Vec::new(),
        };
        let mut open: Option<(Block, usize)> = None;
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            if let Some((block, depth)) = &mut open {
                if line.trim() == "```" {
                    page.blocks.extend(open.take().map(|(block, _)| block));
                } else {
                    block.text += &line[(*depth).min(indent)..];
                    block.text.push('\n');
                }
            } else if let Some(flags) =
                line.strip_prefix("<!-- test: ").and_then(|rest| rest.strip_suffix(" -->"))
            {
                page.serve = match flags {
                    "no service" => None,
                    _ => Some(
                        flags.strip_prefix("serve").unwrap_or_else(|| panic!("{}: {line}", page.name)).into(),
                    ),
                };
            } else if let Some(info) =
                line.trim_start().strip_prefix("```sh").or(line.trim_start().strip_prefix("```bash"))
            {
                let no_run = info.trim().strip_prefix("no-run:").map(|why| why.trim().to_string());
                assert!(info.trim().is_empty() || no_run.is_some(), "{}:{}: {line}", page.name, number + 1);
                open = Some((Block { line: number + 1, text: String::new(), no_run }, indent));
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", page.name);
        page
    }

    fn run(&self) {
        let dir = TempDir::new();
        let bin = dir.path().join("bin");
        let work = dir.path().join("work");
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&work).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), bin.join("leasehold")).unwrap();
        let mut script = String::from("ip link set lo up || exit 1\n");
        if let Some(flags) = &self.serve {
            script += &format!(
                "leasehold serve --data ../data {flags} >../serve.out 2>../serve.log &\n\
                 for i in $(seq 600); do grep -q listening ../serve.out && break; sleep 0.1; done\n\
                 grep -q listening ../serve.out || {{ cat ../serve.log; exit 1; }}\n"
            );
        }
        for block in self.blocks.iter().filter(|block| block.no_run.is_none()) {
            // A whole script is a file to be saved, under the name in its second line.
            if let Some(rest) = block
                .text
                .strip_prefix("#!/bin/sh\n# ")
                .or(block.text.strip_prefix("#!/usr/bin/env bash\n# "))
            {
                let path = bin.join(rest.split(':').next().unwrap());
                fs::write(&path, &block.text).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
                continue;
            }
            let file = dir.path().join(format!("line-{}", block.line));
            fs::write(&file, &block.text).unwrap();
            // In one shell, one after the other: variables stay.
            script += &format!(
                ". {} || {{ echo \"{}:{}: exit status $?\" >&2; cat ../serve.log; exit 1; }}\n",
                file.display(),
                self.name,
                block.line
            );
        }
        fs::write(dir.path().join("page"), script).unwrap();
        let output = Command::new("unshare")
            .args(["--net", "--pid", "--fork", "--kill-child", "--map-root-user", "--mount-proc"])
            .args(["timeout", "300", "bash", "../page"])
            .current_dir(&work)
            .env("PATH", format!("{}:{}:/usr/sbin:/sbin", bin.display(), std::env::var("PATH").unwrap()))
            .env("LEASEHOLD", "http://127.0.0.1:4080")
            .env("NO_PROXY", "*")
            .output()
            .expect("unshare (util-linux) and user namespaces are needed");
        assert!(
            output.status.success(),
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.name,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn pages() -> Vec<Page> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    paths.push(root().join("README.md"));
    paths.sort();
    paths.iter().map(|path| Page::read(path)).collect()
}

#[test]
fn every_shell_example_runs_as_it_stands() {
    let pages = pages();
    assert!(pages.len() >= 9);
    let run = |page: &Page| page.blocks.iter().any(|block| block.no_run.is_none());
    // Two pages at a time: the machines that run this are small.
    let wanted = std::env::var("LEASEHOLD_PAGE").unwrap_or_default();
    let queue = std::sync::Mutex::new(pages.iter().filter(|page| run(page) && page.name.contains(&wanted)));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(page) = queue.lock().unwrap().next() else { return };
                    eprintln!("{}", page.name);
                    page.run();
                }
            });
        }
    });
}

#[test]
fn what_is_not_run_says_why_and_is_the_exception() {
    let pages = pages();
    let blocks: Vec<&Block> = pages.iter().flat_map(|page| &page.blocks).collect();
    let not_run: Vec<&Block> = blocks.iter().copied().filter(|block| block.no_run.is_some()).collect();
    for block in &not_run {
        assert!(block.no_run.as_ref().unwrap().len() > 15, "line {}: say why it can't be run", block.line);
    }
    assert!(not_run.len() * 3 <= blocks.len(), "{} of {} examples are not run", not_run.len(), blocks.len());
}

/// All pages for readers: at the top, below docs/, and the manuals of the clients.
fn readable() -> Vec<PathBuf> {
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    let clients = ["clients/python/README.md", "crates/client/README.md"];
    let mut pages: Vec<PathBuf> = top.iter().chain(&clients).map(|name| root().join(name)).collect();
    for folder in ["docs", "docs/notes"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    }
    pages
}

/// The anchor that a heading gets: letters, digits, `-` and `_` in small letters, spaces as hyphens.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect()
}

/// A page outside of its fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

fn leads_somewhere(page: &Path, target: &str) -> bool {
    let (file, wanted) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_path_buf() } else { page.parent().unwrap().join(file) };
    if wanted.is_empty() || path.extension().is_none_or(|kind| kind != "md") {
        return path.exists();
    }
    let Ok(text) = fs::read_to_string(&path) else { return false };
    prose(&text).any(|line| line.starts_with('#') && anchor(line) == wanted)
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for page in readable() {
        let text = fs::read_to_string(&page).unwrap();
        let prose = prose(&text).collect::<Vec<_>>().join("\n");
        for target in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let outside = target.contains("://") || target.starts_with("mailto:") || target.contains(' ');
            if !outside && !leads_somewhere(&page, target) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_index_names_every_page() {
    let index = fs::read_to_string(root().join("docs/README.md")).unwrap();
    for page in readable().iter().filter(|page| page.starts_with(root().join("docs"))) {
        let name = page.strip_prefix(root().join("docs")).unwrap().display().to_string();
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "docs/README.md lacks {name}");
    }
}

/// The words of `problem(StatusCode::CONFLICT, "change-refused", ...)`, of `(StatusCode::CONFLICT, "change-refused")`, and of
/// problems with members of their own.
fn kinds_of_problems(folder: &Path, kinds: &mut std::collections::BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            kinds_of_problems(&path, kinds);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        // `("deadlock", detail, json!({ ... }))`: a problem with members of its own.
        let lines = text.lines().map(|line| line.trim().trim_start_matches("return "));
        for line in lines.filter(|line| line.contains(", json!(")) {
            let Some((kind, rest)) = line.strip_prefix("(\"").and_then(|rest| rest.split_once("\", ")) else {
                continue;
            };
            if is_kind(kind) && !rest.starts_with("json!(") {
                kinds.insert(kind.to_string());
            }
        }
        for rest in text.split("StatusCode::").skip(1) {
            let after = rest.trim_start_matches(|letter: char| letter.is_ascii_uppercase() || letter == '_');
            let rest = after.strip_prefix(',').or(after.strip_prefix(" =>"));
            let Some(quoted) = rest.and_then(|rest| rest.trim_start().strip_prefix('"')) else {
                continue;
            };
            let kind = quoted.split('"').next().unwrap();
            if is_kind(kind) {
                kinds.insert(kind.to_string());
            }
        }
    }
}

fn is_kind(word: &str) -> bool {
    word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
}

#[test]
fn every_problem_of_the_api_is_explained() {
    let mut kinds = std::collections::BTreeSet::new();
    kinds_of_problems(&root().join("crates/server/src"), &mut kinds);
    assert!(kinds.len() >= 45, "{kinds:?}");
    let page = fs::read_to_string(root().join("docs/problems.md")).unwrap();
    let missing: Vec<_> = kinds.iter().filter(|kind| !page.contains(&format!("`{kind}`"))).collect();
    assert!(missing.is_empty(), "docs/problems.md does not explain {missing:?}");
}

#[test]
fn cargo_run_means_leasehold() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--locked", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let default = metadata["workspace_default_members"].as_array().unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let targets = packages
        .filter(|package| default.contains(&package["id"]))
        .flat_map(|package| package["targets"].as_array().unwrap());
    let binaries: Vec<_> =
        targets.filter(|target| target["kind"][0] == "bin").map(|target| target["name"].clone()).collect();
    assert_eq!(binaries, ["leasehold"], "the README's first command runs the one binary of the product");
}
