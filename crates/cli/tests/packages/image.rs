//! The container image: built without a network, and run as a container engine runs it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::TempDir;
use crate::support::{release, root, run};

/// What the Dockerfile says under this instruction.
pub(crate) fn instructions(name: &str) -> Vec<String> {
    let recipe = fs::read_to_string(root("Dockerfile")).unwrap();
    let lines = recipe.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.map(ToString::to_string).collect()
}

/// The image's environment, for a container that adds nothing to it.
pub(crate) fn environment() -> Vec<(String, String)> {
    let settings: Vec<String> = instructions("ENV")
        .iter()
        .flat_map(|line| line.split(' ').map(String::from).collect::<Vec<_>>())
        .collect();
    settings
        .iter()
        .map(|setting| setting.split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap())
        .collect()
}

#[test]
fn buildah_builds_the_image_without_a_network_and_the_command_runs_in_it() {
    let store = TempDir::new();
    let flags = format!("--storage-driver vfs --root {0}/images --runroot {0}/run", store.path().display());
    // No network at all: not even a loopback device is up.
    let script = r#"
        set -e
        scripts/build-image "$1/image" leasehold:test >&2
        container=$(buildah $BUILDAH_FLAGS from leasehold:test)
        buildah $BUILDAH_FLAGS inspect --type image leasehold:test
        root=$(buildah $BUILDAH_FLAGS mount "$container")
        buildah $BUILDAH_FLAGS run --isolation chroot "$container" /usr/bin/leasehold --version >"$2/version"
        find "$root" -type f | sed "s|^$root||" | sort >"$2/files"
        stat --format %u:%g "$root/data" >"$2/owner"
        buildah $BUILDAH_FLAGS umount "$container" >&2
    "#;
    let inside = ["--net", "--mount", "bash", "-c", script, "bash"];
    let mut build = Command::new("unshare");
    if !rustix::process::getuid().is_root() {
        // The image's files belong to several users; buildah maps them to the subordinate ids of this one.
        build = Command::new("buildah");
        build.args(["unshare", "unshare"]);
    }
    build.args(inside).arg(release()).arg(store.path());
    // Without a daemon to ask, as on a machine that has only buildah.
    build.envs([
        ("BUILDAH_FLAGS", flags.as_str()),
        ("DOCKER_HOST", "unix:///nowhere"),
        ("HOME", store.path().to_str().unwrap()),
    ]);
    let image: Value = serde_json::from_str(&run(build.current_dir(root("")))).unwrap();

    let config = &image["OCIv1"]["config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], serde_json::json!(["/usr/bin/leasehold"]));
    assert!(
        config["ExposedPorts"]["4080"].is_object() || config["ExposedPorts"]["4080/tcp"].is_object(),
        "{config}"
    );
    let version = fs::read_to_string(store.path().join("version")).unwrap();
    assert_eq!(version.trim(), concat!("leasehold ", env!("CARGO_PKG_VERSION")));
    let files = fs::read_to_string(store.path().join("files")).unwrap();
    assert!(files.contains("/usr/bin/leasehold\n") && files.contains("/libc.so.6\n"), "{files}");
    assert!(!files.contains("bin/sh\n"), "no shell");
    assert!(files.lines().count() < 20, "{files}");
    assert_eq!(
        fs::read_to_string(store.path().join("owner")).unwrap(),
        "65532:65532\n",
        "the user can write its data"
    );
}

#[test]
fn the_image_starts_from_nothing_and_runs_as_nobody() {
    assert_eq!(instructions("FROM"), ["scratch"]);
    assert_eq!(instructions("USER"), ["65532:65532"]);
    assert_eq!(instructions("RUN"), [""; 0], "a command of the build could fetch something");
}
