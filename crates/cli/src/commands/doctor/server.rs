//! A node: its settings, its files, its disk, its limits, its peers.
//!
//! In:    the flags of `serve`. Out: findings.
//! Never: takes the data directory's lock, so that it can be used beside the node.

use leasehold_server::app::Guards;
use leasehold_server::config::{Config, Options};
use leasehold_server::serve::connection_limit::HEALTH_PLACES;
use rustix::process::{Resource, getrlimit};

use super::super::connect::block_on;
use super::super::serve::args::ServeArgs;
use super::super::serve::{DESCRIPTORS_KEPT, Sources};
use super::{Findings, Level, clocks, disk, files, peers};

pub(super) fn examine(args: ServeArgs) -> anyhow::Result<Findings> {
    let mut findings = Findings::default();
    let sources = Sources::new(args);
    let read = sources.merged().and_then(|given| Ok((given.clone().validate()?, given)));
    let (config, given) = match read {
        Ok(read) => read,
        Err(error) => {
            findings.bad(
                Level::Error,
                "configuration",
                format!("{error:#}"),
                "correct that setting and ask again",
            );
            return Ok(findings);
        }
    };
    configuration(&config, &given, &mut findings);
    files::examine(&config, &given, &mut findings);
    disk::examine(&config, &mut findings);
    descriptors(&config, &mut findings);
    clocks::own(&mut findings);
    match &config.cluster {
        None => findings.ok("peers", "none: this node runs alone"),
        Some(cluster) => block_on(async {
            peers::examine(cluster, &mut findings).await;
            Ok(())
        })?,
    }
    Ok(findings)
}

fn configuration(config: &Config, given: &Options, findings: &mut Findings) {
    match Guards::check(config) {
        Ok(()) => findings.ok("configuration", "all settings and the files that they name can be read"),
        Err(why) => findings.bad(
            Level::Error,
            "configuration",
            why,
            "correct it: like that, the node does not start, or refuses everybody",
        ),
    }
    let reachable = config.listen.iter().find(|address| !address.ip().is_loopback());
    if let Some(address) = reachable {
        if config.access.is_none() {
            let found = format!("everybody who reaches {address} may take and break every lock (--insecure)");
            findings.bad(Level::Warning, "configuration", found, "turn access control on: docs/security.md");
        } else if config.tls.is_none() {
            let found = format!("credentials travel in the clear to {address}");
            let advice = "give --tls-certificate and --tls-key, or let only a proxy with TLS in";
            findings.bad(Level::Warning, "configuration", found, advice);
        }
    }
    if given.cluster.as_ref().is_some_and(|cluster| cluster.secret.is_some()) {
        let found = "the cluster secret is in a flag, a variable or the configuration file";
        findings.bad(
            Level::Warning,
            "configuration",
            found,
            "use --cluster-secret-file: others can't see it there",
        );
    }
}

fn descriptors(config: &Config, findings: &mut Findings) {
    let wanted = config.connections_max as u64 + HEALTH_PLACES as u64 + DESCRIPTORS_KEPT;
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < wanted => {
            let found = format!(
                "{most} open files are allowed, and {} connections need {wanted}",
                config.connections_max
            );
            let advice =
                "raise the limit (LimitNOFILE in the unit, `ulimit -Hn`), or lower --connections-max";
            findings.bad(Level::Warning, "descriptors", found, advice);
        }
        most => {
            let most = most.map_or("any number of".into(), |most| most.to_string());
            findings
                .ok("descriptors", format!("{most} open files are allowed, {wanted} are needed at the most"));
        }
    }
}
