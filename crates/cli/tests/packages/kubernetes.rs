//! The manifests of deploy/kubernetes: held to the published schemas, and started as a kubelet would start them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::TempDir;
use crate::image::{environment, instructions};
use crate::pods::{Container, form_a_cluster_and_move, in_own_namespaces};
use crate::support::{python, root, run, yaml};

fn files() -> Vec<PathBuf> {
    let listed = std::fs::read_dir(root("deploy/kubernetes")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = listed.collect();
    files.sort();
    files
}

/// All manifests, by kind and name.
fn manifests() -> BTreeMap<String, Value> {
    let name = |part: &Value| format!("{}/{}", part["kind"], part["metadata"]["name"]).replace('"', "");
    yaml(&files()).into_iter().map(|part| (name(&part), part)).collect()
}

#[test]
fn the_manifests_fit_the_schemas_of_the_oldest_and_the_newest_kubernetes() {
    for version in ["1.28", "1.37"] {
        let mut validate = python();
        validate.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]);
        run(validate.args(files()));
    }
}

#[test]
fn the_manifests_keep_a_majority_up_and_give_no_rights() {
    let all = manifests();
    let set = &all["StatefulSet/leasehold"]["spec"];
    let (pod, labels) = (&set["template"]["spec"], &set["template"]["metadata"]["labels"]);
    assert_eq!(set["replicas"], 3);
    assert_eq!(all["PodDisruptionBudget/leasehold"]["spec"]["maxUnavailable"], 1);
    for (name, path) in [
        ("PodDisruptionBudget/leasehold", "/spec/selector/matchLabels"),
        ("Service/leasehold", "/spec/selector"),
        ("Service/leasehold-peers", "/spec/selector"),
        ("StatefulSet/leasehold", "/spec/selector/matchLabels"),
        ("NetworkPolicy/leasehold", "/spec/podSelector/matchLabels"),
    ] {
        assert_eq!(all[name].pointer(path), Some(labels), "{name} means other pods");
    }
    let peers = &all["Service/leasehold-peers"]["spec"];
    assert_eq!((&peers["clusterIP"], &peers["publishNotReadyAddresses"]), (&"None".into(), &true.into()));
    assert_eq!(set["serviceName"], "leasehold-peers");

    let container = &pod["containers"][0];
    let rights = &container["securityContext"];
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let user = format!("{0}:{0}", pod["securityContext"]["runAsUser"]);
    assert_eq!(instructions("USER"), [user], "the image's user");
    assert_eq!(pod["automountServiceAccountToken"], false);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "http", "{probe}");
    }
    assert!(
        container["resources"]["requests"]["memory"].is_string()
            && container["resources"]["limits"]["memory"].is_string()
    );
    let image = format!("leasehold:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], image.as_str(), "as `make image` calls it");
}

/// What the secrets of docs/packages.md contain, and the key of a client.
fn secrets() -> (BTreeMap<&'static str, (&'static str, String)>, String) {
    let dir = TempDir::new();
    let keys = dir.path().join("keys.toml");
    let mut make = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let key = run(make.args(["access", "key", "make", "--user", "admin", "--keys"]).arg(&keys));
    let secrets = [
        ("leasehold-cluster", ("secret", run(Command::new("openssl").args(["rand", "-hex", "32"])))),
        ("leasehold-access", ("keys.toml", std::fs::read_to_string(keys).unwrap())),
    ];
    (BTreeMap::from(secrets), key.trim().into())
}

/// The container of one pod of the StatefulSet, as a kubelet would read it.
fn container(
    all: &BTreeMap<String, Value>,
    ordinal: u64,
    secrets: &BTreeMap<&str, (&str, String)>,
) -> Container {
    let set = &all["StatefulSet/leasehold"];
    let (name, service) =
        (set["metadata"]["name"].as_str().unwrap(), set["spec"]["serviceName"].as_str().unwrap());
    let pod = &set["spec"]["template"]["spec"];
    let described = &pod["containers"][0];
    let value = |setting: &Value| match setting["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
        None => setting["value"].as_str().unwrap().to_string(),
        // The label that the StatefulSet's controller gives its pods.
        Some("metadata.labels['apps.kubernetes.io/pod-index']") => ordinal.to_string(),
        Some(other) => panic!("{other}: unknown to this test"),
    };
    let set_here = described["env"].as_array().unwrap().iter();
    let mut env = environment();
    for setting in set_here {
        // A kubelet replaces $(NAME) by the value of a variable that stands above.
        let known =
            |text: String, (name, value): &(String, String)| text.replace(&format!("$({name})"), value);
        let value = env.iter().fold(value(setting), known);
        env.push((setting["name"].as_str().unwrap().to_string(), value));
    }

    let mut files = Vec::new();
    for mount in described["volumeMounts"].as_array().unwrap() {
        let folder = mount["mountPath"].as_str().unwrap();
        let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == mount["name"]);
        let Some(volume) = volume else { continue }; // the claim for the data
        if let Some(config) = volume["configMap"]["name"].as_str() {
            let data = all[&format!("ConfigMap/{config}")]["data"].as_object().unwrap();
            files.extend(
                data.iter()
                    .map(|(file, text)| (format!("{folder}/{file}"), text.as_str().unwrap().to_string())),
            );
        }
        if let Some(secret) = volume["secret"]["secretName"].as_str() {
            let (file, text) = &secrets[secret];
            files.push((format!("{folder}/{file}"), text.clone()));
        }
    }
    let args = described["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap().to_string());
    Container { names: vec![format!("{name}-{ordinal}.{service}")], args: args.collect(), env, files }
}

#[test]
fn three_pods_become_a_cluster_and_stay_one_when_their_addresses_change() {
    let test = "kubernetes::three_pods_become_a_cluster_and_stay_one_when_their_addresses_change";
    in_own_namespaces(test, |machine| {
        let all = manifests();
        let set = &all["StatefulSet/leasehold"]["spec"];
        let (secrets, key) = secrets();
        let first = set["ordinals"]["start"].as_u64().unwrap();
        for ordinal in first..first + set["replicas"].as_u64().unwrap() {
            machine.create(container(&all, ordinal, &secrets));
        }
        let probe = &set["template"]["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"];
        form_a_cluster_and_move(machine, &key, probe.as_str().unwrap());
        // Each node names itself as the others know it, and answers there.
        for (node, pod) in (first..).zip(&machine.pods) {
            let url = format!("http://leasehold-{node}.leasehold-peers:4080");
            assert_eq!(pod.advertised(&key, node), url);
            assert!(pod.names().iter().any(|name| url == format!("http://{name}:4080")), "{:?}", pod.names());
        }
    });
}
