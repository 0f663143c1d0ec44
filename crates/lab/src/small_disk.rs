//! A disk so small that it can be filled, for real: a tmpfs in a mount namespace of its own.
//!
//! In:    a folder for the mount point. Out: [`SmallDisk`], which lives as long as this does.
//! Never: needs root, or leaves a mount behind: the namespace goes with the process that holds it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

/// Far more than a node of the laboratory keeps, so that there is room once the ballast is gone.
const SIZE: &str = "160m";

/// The disk, and the process that keeps it mounted.
pub struct SmallDisk {
    keeper: Child,
    point: PathBuf,
    root: PathBuf,
}

impl SmallDisk {
    /// Mounts one. Fails where user namespaces are not allowed: a full disk that was not tried must not look passed.
    pub fn mount(dir: &Path) -> anyhow::Result<Self> {
        let point = dir.join("small-disk");
        fs::create_dir_all(&point)?;
        let script = format!("mount -t tmpfs -o size={SIZE} small \"$0\" && echo mounted && read forever");
        let mut keeper = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .arg(&point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a small disk needs `unshare` (util-linux)")?;
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().context("stdout is piped")?).read_line(&mut line)?;
        // Only the keeper sees the mount; this is the way in from outside.
        let root = PathBuf::from(format!("/proc/{}/root{}", keeper.id(), point.display()));
        let disk = Self { keeper, point, root };
        ensure!(line.trim() == "mounted", "no small disk could be mounted: are user namespaces allowed?");
        Ok(disk)
    }

    /// The way to it from outside.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The way to it for who is inside.
    pub fn inside(&self) -> &Path {
        &self.point
    }

    /// A program that runs inside.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.keeper.id().to_string()])
            .args(["--user", "--preserve-credentials", "--mount", "--"])
            .arg(program);
        command
    }

    fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }

    /// Takes all the space that there is.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.ballast())?;
        while file.write_all(&[1; 64 << 10]).is_ok() {}
        while file.write_all(&[1; 4096]).is_ok() {}
        Ok(())
    }

    /// Whether it was filled and not freed since.
    pub fn is_filled(&self) -> bool {
        self.ballast().exists()
    }

    /// Gives the space back.
    pub fn free(&self) -> anyhow::Result<()> {
        match self.is_filled() {
            true => Ok(fs::remove_file(self.ballast())?),
            false => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.keeper.kill().ok();
        self.keeper.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_until_it_is_freed() {
        let dir = std::env::temp_dir().join(format!("leasehold-small-{}", std::process::id()));
        let disk = SmallDisk::mount(&dir).unwrap();
        fs::write(disk.root().join("before"), [1; 100]).unwrap();
        disk.fill().unwrap();
        let error = fs::write(disk.root().join("after"), vec![1; 8192]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        disk.free().unwrap();
        fs::write(disk.root().join("after"), vec![1; 8192]).unwrap();
        let seen = disk.command(Path::new("/bin/ls")).arg(disk.inside()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout), "after\nbefore\n");
        drop(disk);
        assert!(!dir.join("small-disk/before").exists(), "it was seen outside");
        fs::remove_dir_all(dir).unwrap();
    }
}
