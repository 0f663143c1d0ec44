//! A configuration as an operator can read it, and as a node can: what `serve --check` prints.
//!
//! In:    options that were merged, and the configuration made of them. Out: TOML with every setting, defaults included.
//! Never: has a secret in it.

use super::{AdminAccess, ClusterOptions, Config, Options};

/// What stands for a secret.
const HIDDEN: &str = "(hidden)";

impl Config {
    /// Every setting with the value that holds, as a TOML file. Where the default depends on the machine, there is none.
    pub fn to_toml(&self, given: &Options) -> String {
        toml::to_string(&self.effective(given)).unwrap_or_else(|error| format!("# {error}\n"))
    }

    fn effective(&self, given: &Options) -> Options {
        let backups = self.backups.as_ref();
        let settings = &self.settings;
        Options {
            listen: Some(self.listen.clone()),
            advertise_url: self.advertise_url.clone(),
            redis_listen: Some(self.redis_listen.clone()),
            data: Some(self.data.clone()),
            insecure: Some(given.insecure.unwrap_or(false)),
            trusted_proxies: Some(self.trusted_proxies.clone()),
            admin_userpass_file: Some(match &self.admin {
                AdminAccess::Open => "yes".into(),
                AdminAccess::Off => "no".into(),
                AdminAccess::Users(path) => path.display().to_string(),
            }),
            pickup_grace: Some(settings.pickup_grace_us as f64 / 1e6),
            finished_max: Some(settings.finished_max),
            queue_len_max: Some(settings.queue_len_max),
            claims_per_owner_max: Some(settings.claims_per_owner_max),
            claims_per_namespace_max: Some(settings.claims_per_namespace_max),
            claims_max: Some(settings.claims_max),
            bytes_per_owner_max: Some(self.budgets.per_owner),
            bytes_per_namespace_max: Some(self.budgets.per_namespace),
            bytes_max: Some(self.budgets.total),
            finished_bytes_max: Some(self.budgets.finished),
            memory_max_mib: self.memory_max_bytes.map(|bytes| bytes >> 20),
            connections_max: Some(self.connections_max),
            snapshot_log_mib: Some(self.snapshot_log_bytes >> 20),
            header_timeout: Some(self.header_timeout.as_secs_f64()),
            body_timeout: Some(self.body_timeout.as_secs_f64()),
            write_timeout: Some(self.write_timeout.as_secs_f64()),
            body_bytes_max: Some(self.body_bytes_max),
            // Clients of this machine have another default.
            client_share: given.client_share,
            allowed_hosts: Some(self.allowed_hosts.clone()),
            allowed_origins: Some(self.allowed_origins.clone()),
            requests_per_second: Some(self.requests_per_second.unwrap_or(0.0)),
            long_polls_max: Some(self.long_polls_max),
            access: self.access.clone(),
            tls: self.tls.clone(),
            audit: self.audit.clone(),
            log_format: Some(self.log_format),
            backup_every: backups.map(|backups| format!("{}s", backups.every.as_secs_f64())),
            backup_dir: backups.map(|backups| backups.dir.clone()),
            backup_keep: backups.map(|backups| backups.keep),
            otlp: self.otlp.clone(),
            cluster: self.cluster.as_ref().map(|cluster| {
                let given = given.cluster.clone().unwrap_or_default();
                ClusterOptions {
                    node_id: Some(cluster.node),
                    peer_listen: Some(cluster.listen),
                    peer_advertise: Some(cluster.advertise.clone()),
                    secret: given.secret.map(|_| HIDDEN.into()),
                    heartbeat_ms: Some(cluster.heartbeat.as_millis() as u64),
                    ..given
                }
            }),
        }
    }
}
