//! Every shell example of the README and of docs/, word for word. CONTRIBUTING.md has the convention.
//!
//! Each page has a network of its own, in which its service listens where the page says it does.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on should say so and stop"
)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::TempDir;

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

#[test]
fn links_between_pages_lead_somewhere() {
    let mut broken = Vec::new();
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let top =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name));
    for path in docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).chain(top) {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            let outside = file.is_empty()
                || target.contains("://")
                || target.starts_with("mailto:")
                || target.contains(' ');
            if !outside && !path.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
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
