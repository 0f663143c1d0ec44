//! deploy/compose: understood by docker-compose, and started as it would start it. No container engine runs in the tests.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::TempDir;
use crate::image::environment;
use crate::pods::{Container, form_a_cluster_and_move, in_own_namespaces};
use crate::support::{root, run, yaml};

/// The file as docker-compose understands it, beside the secrets that docs/packages.md makes; and a client's key.
fn compose(dir: &TempDir) -> (Value, String) {
    let at = |name: &str| dir.path().join(name);
    fs::copy(root("deploy/compose/compose.yaml"), at("compose.yaml")).unwrap();
    fs::write(at("cluster-secret"), run(Command::new("openssl").args(["rand", "-hex", "32"]))).unwrap();
    let mut make = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let key = run(make.args(["access", "key", "make", "--user", "admin", "--keys"]).arg(at("keys.toml")));
    let understood = run(Command::new("docker-compose").arg("config").current_dir(dir.path()));
    fs::write(at("understood.yaml"), understood).unwrap();
    (yaml(&[at("understood.yaml")]).remove(0), key.trim().into())
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn docker_compose_understands_the_file_and_starts_three_guarded_nodes() {
    let (understood, _) = compose(&TempDir::new());
    let services = understood["services"].as_object().unwrap();
    assert_eq!(services.keys().collect::<Vec<_>>(), ["leasehold-1", "leasehold-2", "leasehold-3"]);
    for (name, service) in services {
        let id = service["environment"]["LEASEHOLD_NODE_ID"].to_string();
        assert!(name.ends_with(id.trim_matches('"')), "{name} is node {id}");
        assert_eq!(service["image"], concat!("leasehold:", env!("CARGO_PKG_VERSION")));
        assert_eq!(service["read_only"], true);
        assert_eq!(texts(&service["cap_drop"]), ["ALL"]);
        let ports = texts(&service["ports"]);
        assert!(
            ports.iter().all(|port| port.starts_with("127.0.0.1:") && port.contains(":4080")),
            "{ports:?}"
        );
        let number = name.trim_start_matches("leasehold-");
        assert_eq!(texts(&service["volumes"]), [format!("data-{number}:/data:rw")]);
    }
}

#[test]
fn three_services_become_a_cluster_and_stay_one_when_their_addresses_change() {
    let test = "compose::three_services_become_a_cluster_and_stay_one_when_their_addresses_change";
    in_own_namespaces(test, |machine| {
        let dir = TempDir::new();
        let (understood, key) = compose(&dir);
        for (name, service) in understood["services"].as_object().unwrap() {
            let mut env = environment();
            let set_here = service["environment"].as_object().unwrap().iter();
            env.extend(
                set_here.map(|(name, value)| (name.clone(), value.to_string().trim_matches('"').to_string())),
            );
            let secrets = service["secrets"].as_array().unwrap().iter().map(|secret| {
                let name = secret["source"].as_str().unwrap();
                let file = understood["secrets"][name]["file"].as_str().unwrap();
                (format!("/run/secrets/{name}"), fs::read_to_string(file).unwrap())
            });
            // Without a command of its own, the image's.
            machine.create(Container {
                names: vec![name.clone()],
                args: vec!["serve".into()],
                env,
                files: secrets.collect(),
            });
        }
        form_a_cluster_and_move(machine, &key, "/readyz");
        // Each node names the port of this machine that leads to it.
        for (node, service) in (1..).zip(understood["services"].as_object().unwrap().values()) {
            let published =
                texts(&service["ports"])[0].trim_end_matches("/tcp").trim_end_matches(":4080").to_string();
            assert_eq!(machine.pods[0].advertised(&key, node), format!("http://{published}"));
        }
    });
}
