//! The other nodes: whether this machine reaches them, with this secret, and which version they run.

use std::time::Duration;

use leasehold_engine::ClusterConfig;
use leasehold_engine::checkup::{Checkup, PeerFound, PeerReport};

use super::{Findings, Level, clocks};

/// How long the leader's clock is compared with this one's.
const CLOCK_LENGTH: Duration = Duration::from_secs(2);
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn examine(cluster: &ClusterConfig, findings: &mut Findings) {
    let checkup = Checkup::new(cluster);
    let reports = checkup.peers().await;
    reports.iter().for_each(|report| peer(cluster, report, findings));
    let found = reports.iter().filter_map(|report| Some((report, report.found.as_ref().ok()?)));
    let leader = found.clone().find(|(_, found)| found.leader == Some(found.id));
    match leader {
        Some((report, found)) => {
            let rate = checkup.clock_rate(found.id, &report.address, CLOCK_LENGTH).await;
            clocks::leader(found.id, rate, findings);
        }
        None if found.clone().any(|(_, found)| found.leader == Some(cluster.node)) => {
            findings.ok("clock", "this node leads: its own clock counts");
        }
        None => findings.bad(
            Level::Unknown,
            "clock",
            "no leader was found, so no clock counts at the moment",
            "ask again when a majority of the nodes is up",
        ),
    }
}

fn peer(cluster: &ClusterConfig, report: &PeerReport, findings: &mut Findings) {
    let PeerReport { expected, address, found } = report;
    let PeerFound { id, version, role, took, .. } = match found {
        Ok(found) => found,
        Err(why) => {
            let name = expected.map_or("the node".into(), |id| format!("node {id}"));
            let advice = "is it up, is its peer port open from here, and do both have the same secret and certificates?";
            return findings.bad(Level::Error, "peers", format!("{name} at {address}: {why}"), advice);
        }
    };
    if expected.is_some_and(|expected| expected != *id) || *id == cluster.node {
        let found = format!("node {id} answers at {address}");
        return findings.bad(Level::Error, "peers", found, "correct --peers, or that node's --node-id");
    }
    let found = format!(
        "node {id} at {address}: {role}, version {version}, answers in {:.1} ms",
        took.as_secs_f64() * 1e3
    );
    match version == OWN_VERSION {
        true => findings.ok("peers", found),
        false => {
            let advice =
                format!("this is version {OWN_VERSION}: finish the upgrade, one node after the other");
            findings.bad(Level::Warning, "peers", found, advice);
        }
    }
}
