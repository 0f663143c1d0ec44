//! `leasehold serve`: runs a node until it is told to stop.
//!
//! In:    flags, then `LEASEHOLD_*`, then the TOML file, then defaults. Out: a running service; logs on stderr, and
//!        on stdout a line for each of its URLs once it can be used.
//! Never: exits 0 unless everything that was asked has been answered.

pub(crate) mod args;
pub(crate) mod logging;
mod watch;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use leasehold_engine::publish::Listener;
use leasehold_engine::{Engine, EngineConfig};
use leasehold_server::api::locks::{withdraw_of_silent_nodes, withdraw_orphans};
use leasehold_server::app::Guards;
use leasehold_server::backups;
use leasehold_server::config::{Config, Options};
use leasehold_server::observe::Observer;
use leasehold_server::observe::otlp::Exporter;
use leasehold_server::serve::Server;
use leasehold_server::serve::connection_limit::HEALTH_PLACES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

pub(crate) use self::args::ServeArgs;
use super::notify::Notifier;
use super::output;

/// Descriptors that connections never get: some forty segments of a large log, snapshots, four connections to each of four
/// peers and as many of theirs, the audit, identity providers; and as many again.
pub(crate) const DESCRIPTORS_KEPT: u64 = 224;

/// Run the service.
#[derive(clap::Args)]
pub(crate) struct ServeCommand {
    /// Read all of the configuration, print what it means, and exit
    #[arg(long)]
    check: bool,
    // Behind the others: its headings would be theirs too.
    #[command(flatten)]
    args: ServeArgs,
}

/// Where the settings come from: read at the start, and again on SIGHUP.
pub(crate) struct Sources {
    file: Option<PathBuf>,
    flags: Options,
}

impl Sources {
    pub(crate) fn new(args: ServeArgs) -> Self {
        Self { file: args.config.clone(), flags: args.into_options() }
    }

    /// Flags and variables before the file.
    pub(crate) fn merged(&self) -> anyhow::Result<Options> {
        let file = match &self.file {
            None => Options::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                Options::from_toml(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?
            }
        };
        Ok(self.flags.clone().or(file))
    }

    fn read(&self) -> anyhow::Result<Config> {
        Ok(self.merged()?.validate()?)
    }
}

pub(crate) fn run(command: ServeCommand) -> anyhow::Result<()> {
    let sources = Sources::new(command.args);
    if command.check {
        return check(&sources);
    }
    let mut config = sources.read()?;
    logging::start(config.log_format);
    fit_descriptors(&mut config);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(config, sources))
}

/// Reads everything that a start would read, and prints what it means as a file that means the same.
fn check(sources: &Sources) -> anyhow::Result<()> {
    let given = sources.merged()?;
    let config = given.clone().validate()?;
    Guards::check(&config).map_err(|why| anyhow!(why))?;
    output::print(&format!("# Every setting of this node. Secrets are hidden.\n{}", config.to_toml(&given)));
    Ok(())
}

/// Bounds the number of connections by what the process may open. Each is a descriptor, and the log, snapshots and peers
/// need some, too: a node that has none left for its log must stop.
fn fit_descriptors(config: &mut Config) {
    let wanted = config.connections_max as u64 + HEALTH_PLACES as u64 + DESCRIPTORS_KEPT;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let mut current = limit.current.unwrap_or(u64::MAX);
    if current < most {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
        current = if raised.is_ok() { most } else { current };
    }
    if current >= wanted {
        let connections = config.connections_max;
        tracing::debug!(descriptors = current, connections, "there are descriptors for all connections");
        return;
    }
    // Where there are few, at least half of them are kept.
    let kept = (DESCRIPTORS_KEPT + HEALTH_PLACES as u64).min(current / 2);
    let connections = usize::try_from(current - kept).unwrap_or(usize::MAX).clamp(1, config.connections_max);
    tracing::warn!(
        descriptors = current,
        kept,
        connections,
        wanted = config.connections_max,
        "fewer connections than --connections-max: raise the limit of open files (`ulimit -Hn`, LimitNOFILE)"
    );
    config.connections_max = connections;
}

async fn serve(config: Config, sources: Sources) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let hangup = signal(SignalKind::hangup())?;
    let guards = Arc::new(Guards::new(&config).map_err(|why| anyhow!(why))?);
    let observer = Arc::new(Observer::default());
    let started = std::time::Instant::now();
    let engine = start_engine(&config, &guards, &observer).await?;
    let orphans = withdraw_orphaned_requests(&engine, &config).await;
    let server = Server::bind(engine.clone(), config.clone(), guards.clone(), observer.clone())?;
    let urls = urls(&server, config.tls.is_some())?;
    let advertised = server.local_addrs()?.first().and_then(|bound| config.advertised(*bound));
    advertised.iter().for_each(|url| engine.set_url(url));
    let url = advertised.as_ref().unwrap_or(&urls[0]);
    warn_of_plain_text(&config);
    tokio::spawn(reload_on_hangup(hangup, guards.clone(), sources));
    let took = format!("{:.1} s", started.elapsed().as_secs_f64());
    tracing::info!(data = %config.data.display(), %took, "listening on {}", urls.join(", "));
    announce(&urls);
    let backups = config.backups.clone();
    let backups =
        backups.map(|backups| tokio::spawn(backups::keep(engine.clone(), backups, observer.backups.clone())));
    let notifier = Notifier::from_env();
    notifier.ready(url);
    let watchdog = notifier.keep_watchdog(engine.clone());
    let failed = std::cell::OnceCell::new();
    // As a task: the main thread need not wake up whenever it looks.
    let mut watch = tokio::spawn(watch::watch(engine.clone(), server.readiness(), url.clone()));
    server
        .run(async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
                _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
                Ok(why) = &mut watch => {
                    tracing::error!("stopping, since nothing can be written to the log any more: {why}");
                    failed.set(why).ok();
                }
            }
            notifier.stopping();
        })
        .await;
    orphans.inspect(JoinHandle::abort);
    watchdog.inspect(JoinHandle::abort);
    watch.abort();
    backups.inspect(JoinHandle::abort);
    engine.stop().await;
    if let Some(exporter) = observer.exporter.get() {
        exporter.stop().await;
    }
    if let Some(audit) = &guards.audit {
        audit.flush();
    }
    match failed.into_inner() {
        None => Ok(()),
        Some(why) => Err(anyhow!("the node stopped, since its log failed: {why}")),
    }
}

/// Starts the engine, and what watches it: the audit, traces.
async fn start_engine(config: &Config, guards: &Guards, observer: &Observer) -> anyhow::Result<Arc<Engine>> {
    if let Some(backups) = &config.backups {
        backups::prepare(backups).map_err(|why| anyhow!(why))?;
    }
    let audit = guards.audit.iter().map(|audit| audit.clone() as Arc<dyn Listener>);
    let engine = Engine::start(EngineConfig {
        data_dir: config.data.clone(),
        settings: config.settings.clone(),
        budgets: config.budgets,
        memory_max_bytes: config.memory_max_bytes,
        snapshot_log_bytes: config.snapshot_log_bytes,
        listeners: observer.listeners().into_iter().chain(audit).collect(),
        cluster: config.cluster.clone(),
    })
    .await?;
    if let Some(audit) = &guards.audit {
        audit.go_live(&engine);
    }
    if let Some(url) = &config.otlp {
        let exporter = Exporter::start(url, engine.node_id(), observer.traces.clone());
        observer.exporter.set(exporter.map_err(|why| anyhow!("otlp: {why}"))?).ok();
    }
    Ok(engine)
}

/// Withdraws blocking requests of the last process: their clients are gone with their connections. A node with peers may
/// have to wait for a leader first, and serves meanwhile; the task that waits is given back.
async fn withdraw_orphaned_requests(engine: &Arc<Engine>, config: &Config) -> Option<JoinHandle<()>> {
    if config.cluster.is_none() {
        withdraw_orphans(engine.clone()).await;
        return None;
    }
    let (ours, others) = (engine.clone(), engine.clone());
    Some(tokio::spawn(async move {
        tokio::join!(withdraw_orphans(ours), withdraw_of_silent_nodes(others));
    }))
}

/// Where the service listens, HTTP first.
fn urls(server: &Server, tls: bool) -> anyhow::Result<Vec<String>> {
    let (http, redis) = if tls { ("https", "rediss") } else { ("http", "redis") };
    let named = |scheme: &'static str| move |address: &SocketAddr| format!("{scheme}://{address}");
    let mut urls: Vec<String> = server.local_addrs()?.iter().map(named(http)).collect();
    urls.extend(server.redis_addrs()?.iter().map(named(redis)));
    Ok(urls)
}

/// Credentials that travel in the clear are everybody's.
fn warn_of_plain_text(config: &Config) {
    let reachable =
        config.listen.iter().chain(&config.redis_listen).any(|address| !address.ip().is_loopback());
    if reachable && config.access.is_some() && config.tls.is_none() {
        tracing::warn!(
            "credentials travel in the clear: give --tls-certificate and --tls-key, or let only a proxy with TLS in"
        );
    }
}

/// A broken file changes nothing, and says so loudly.
async fn reload_on_hangup(mut hangup: Signal, guards: Arc<Guards>, sources: Sources) {
    while hangup.recv().await.is_some() {
        let read = sources.read().map_err(|error| format!("{error:#}"));
        match read.and_then(|config| guards.reload(&config)) {
            Ok(()) => tracing::info!("SIGHUP: access control and certificate were read again"),
            Err(why) => tracing::error!(%why, "SIGHUP: NOTHING WAS CHANGED, the old rules stay in force"),
        }
    }
}

/// Scripts and tests wait for the first of these lines. Nobody may be left to read the others.
fn announce(urls: &[String]) {
    let lines: String = urls.iter().map(|url| format!("leasehold is listening on {url}\n")).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()).ok();
}
