//! Containers, run as a container engine runs them: each on the image's files, read-only, as an unprivileged user, in a
//! network of its own with an address that is another one after each start.
//!
//! In:    what a manifest says about a container. Out: a process that can be asked and stopped.
//! Never: leaves anything behind: all of it is in namespaces of the test, which end with it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Client, Reply, eventually};
use crate::support::{python, release, run};

const INSIDE: &str = "LEASEHOLD_TEST_IMAGE";
/// Where clients reach a container.
const PORT: u16 = 4080;

/// Runs the named test of this program again, in namespaces of its own, and the scenario in that second run.
pub(crate) fn in_own_namespaces(test: &str, scenario: impl FnOnce(&mut Machine)) {
    if let Some(image) = std::env::var_os(INSIDE) {
        return scenario(&mut Machine::new(Path::new(&image)));
    }
    // There is no network inside to install anything from.
    python();
    let mut again = Command::new("unshare");
    again.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--map-root-user", "--mount-proc"]);
    again.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let said = run(again.env(INSIDE, release().join("image/root")));
    assert!(said.contains("1 passed"), "{test} is not the name of this test:\n{said}");
}

/// What a manifest says about one container.
pub(crate) struct Container {
    /// The names under which others find it.
    pub(crate) names: Vec<String>,
    /// Behind the image's entry point.
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Absolute paths, and what is in them.
    pub(crate) files: Vec<(String, String)>,
}

/// A machine that runs containers.
pub(crate) struct Machine {
    image: PathBuf,
    /// Where the containers' files are.
    dir: PathBuf,
    pub(crate) pods: Vec<Pod>,
    /// The last part of the next address; none is used twice.
    next: u8,
}

/// A container with its files and, while it runs, its process.
pub(crate) struct Pod {
    container: Container,
    dir: PathBuf,
    address: Ipv4Addr,
    process: Option<Child>,
}

fn sh(script: &str) {
    run(Command::new("sh").args(["-ec", script]));
}

impl Machine {
    fn new(image: &Path) -> Self {
        sh("mount -t tmpfs none /run && mkdir /run/pods && ip link set lo up
            ip link add pods type bridge && ip address add 10.9.0.1/24 dev pods && ip link set pods up");
        Self { image: image.into(), dir: "/run/pods".into(), pods: Vec::new(), next: 10 }
    }

    /// Makes a container, and does not start it yet.
    pub(crate) fn create(&mut self, container: Container) {
        let dir = self.dir.join(&container.names[0]);
        let root = dir.join("root");
        fs::create_dir(&dir).unwrap();
        sh(&format!("cp -R {} {}", self.image.display(), root.display()));
        for folder in ["proc", "data"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::create_dir(dir.join("data")).unwrap();
        for (path, text) in &container.files {
            let path = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        self.pods.push(Pod { container, dir, address: Ipv4Addr::UNSPECIFIED, process: None });
    }

    /// Starts a container at an address that it never had, and tells the names of all to all.
    pub(crate) fn start(&mut self, index: usize) {
        self.next += 1;
        self.pods[index].address = Ipv4Addr::new(10, 9, 0, self.next);
        let host = |pod: &Pod| format!("{} {}\n", pod.address, pod.container.names.join(" "));
        let hosts: String = self.pods.iter().map(host).collect();
        for pod in &self.pods {
            fs::write(pod.dir.join("root/etc/hosts"), &hosts).unwrap();
        }
        self.pods[index].start(self.next);
    }
}

impl Pod {
    fn start(&mut self, number: u8) {
        let (root, network) = (self.dir.join("root"), format!("pod{number}"));
        sh(&format!(
            "ip netns add {network} && ip -n {network} link set lo up
             ip link add veth{number} master pods up type veth peer name eth0 netns {network}
             ip -n {network} address add {}/24 dev eth0 && ip -n {network} link set eth0 up",
            self.address
        ));
        // The data alone can be written; the user is the image's.
        let start = "mount --bind $0/root $0/root && mount --bind $0/data $0/root/data && mount --rbind /proc $0/root/proc
            mount -o remount,bind,ro $0/root
            exec unshare --user --map-user=65532 --map-group=65532 --root=$0/root /usr/bin/leasehold \"$@\"";
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{network}")).args(["unshare", "--mount", "sh", "-ec", start]);
        command
            .arg(&self.dir)
            .args(&self.container.args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(self.container.env.iter().cloned()).stdin(Stdio::null()).stdout(Stdio::null());
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        assert!(root.join("usr/bin/leasehold").exists());
        self.process = Some(command.stderr(log).spawn().unwrap());
    }

    /// SIGTERM, as every container engine sends it first.
    pub(crate) fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        run(Command::new("kill").args(["-TERM", &process.id().to_string()]));
        assert!(process.wait().unwrap().success(), "{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Its answer, if it gives one.
    pub(crate) fn ask(&self, method: &str, path: &str, key: &str, body: &str) -> Option<Reply> {
        let mut client = Client::try_connect(SocketAddr::from((self.address, PORT))).ok()?;
        let authorization = format!("Bearer {key}");
        client.try_request(method, path, &[("Authorization", &authorization)], body.as_bytes()).ok()
    }

    /// The names under which others find it.
    pub(crate) fn names(&self) -> &[String] {
        &self.container.names
    }

    /// The URL of a node, as this one shows it.
    pub(crate) fn advertised(&self, key: &str, node: u64) -> String {
        let status = self.ask("GET", "/v1/cluster", key, "").unwrap().json();
        let nodes = status["nodes"].as_array().unwrap();
        let found = nodes.iter().find(|found| found["id"] == node).unwrap();
        found["url"].as_str().unwrap_or_else(|| panic!("no URL in {found}")).into()
    }

    /// Waits until a probe succeeds.
    pub(crate) fn wait_for(&mut self, probe: &str) {
        eventually(&format!("{} of {}\n{}", probe, self.container.names[0], self.log()), || {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}\n{}", self.log());
            self.ask("GET", probe, "", "").is_some_and(|reply| reply.status == 200)
        });
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

/// Three containers become one cluster, and stay one when each, and then all of them, come back at other addresses.
pub(crate) fn form_a_cluster_and_move(machine: &mut Machine, key: &str, ready: &str) {
    for index in 0..3 {
        machine.start(index);
    }
    all_three_vote(machine, key, ready);
    let claim =
        machine.pods[0].ask("POST", "/v1/claims/", key, r#"{"resource": "moving", "ttl": 3600}"#).unwrap();
    assert_eq!(claim.status, 201, "{}", claim.text());
    let path = claim.location_path();

    for index in 0..3 {
        machine.pods[index].stop();
        machine.start(index);
        all_three_vote(machine, key, ready);
    }
    machine.pods.iter_mut().for_each(Pod::stop);
    for index in 0..3 {
        machine.start(index);
    }
    all_three_vote(machine, key, ready);
    for pod in &machine.pods {
        let found = pod.ask("GET", &path, key, "").unwrap().json();
        assert_eq!(found["status"], "active", "{found}");
        assert_eq!(pod.ask("GET", &path, "", "").unwrap().status, 401, "without a key there is no answer");
    }
}

fn all_three_vote(machine: &mut Machine, key: &str, ready: &str) {
    machine.pods.iter_mut().for_each(|pod| pod.wait_for(ready));
    let pods = &machine.pods;
    let logs = || pods.iter().map(Pod::log).collect::<Vec<_>>().join("\n---\n");
    for pod in pods {
        eventually("three nodes that vote and reach each other", || {
            let Some(status) = pod.ask("GET", "/v1/cluster", key, "").filter(|reply| reply.status == 200)
            else {
                return false;
            };
            let nodes = status.json()["nodes"].as_array().unwrap().clone();
            let ids: Vec<u64> = nodes
                .iter()
                .map(|node| node["id"].as_u64().unwrap_or_else(|| panic!("{node}\n{}", logs())))
                .collect();
            ids == [1, 2, 3]
                && nodes.iter().all(|node| node["voter"] == true && node["role"] != "unreachable")
        });
    }
}
