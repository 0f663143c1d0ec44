//! `leasehold access`: access keys of machines, and what the rules decide.
//!
//! In:    the file of keys, the configuration file. Out: a key, once; lists; decisions with their reason.
//! Never: shows a key again: the file has its hash alone.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use leasehold_server::access::identity::{ANONYMOUS, How, Identity};
use leasehold_server::access::keys::KeyFile;
use leasehold_server::access::rules::{Decision, Rules, Verb};
use leasehold_server::access::settings::AccessOptions;
use leasehold_server::config::Options;
use leasehold_server::message::time::rfc3339;

use super::output;

#[derive(clap::Subcommand)]
pub(crate) enum AccessCommand {
    /// Make, list and withdraw keys for machines
    #[command(subcommand)]
    Key(KeyCommand),
    /// Explain what the rules decide. Exit code 0: allowed, 1: denied
    Check(CheckArgs),
}

#[derive(clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it. It cannot be shown again
    Make(MakeArgs),
    /// List the keys: id, user, groups, creation, expiry, note
    List(KeyPlace),
    /// Withdraw a key: a running service notices within a second or two
    Withdraw {
        /// The key's id, as `list` shows it and as it stands in the key itself
        id: String,
        #[command(flatten)]
        place: KeyPlace,
    },
}

/// Where the keys are.
#[derive(clap::Args)]
pub(crate) struct KeyPlace {
    /// The file of keys
    #[arg(long, env = "LEASEHOLD_ACCESS_KEYS", value_name = "FILE")]
    keys: Option<PathBuf>,
    /// The configuration file that names the file of keys
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct MakeArgs {
    /// User that the key stands for: the owner of the claims made with it
    #[arg(long)]
    user: String,
    /// Its groups (repeat, or separate with commas)
    #[arg(long, value_delimiter = ',')]
    groups: Vec<String>,
    /// Where it is used
    #[arg(long, default_value = "")]
    note: String,
    /// Days after which it is no longer valid [default: never]
    #[arg(long)]
    days: Option<u64>,
    #[command(flatten)]
    place: KeyPlace,
}

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// The user; 'anonymous' stands for requests without credentials
    user: String,
    /// read, claim, revoke, metrics or admin
    verb: Verb,
    /// The resource, as the table names it: a lease is NAMESPACE/leases/NAME, a typed lock dss/TYPE/ID
    resource: String,
    /// The user's groups (repeat, or separate with commas)
    #[arg(long, value_delimiter = ',')]
    groups: Vec<String>,
    /// The configuration file with the rules
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn run(command: AccessCommand) -> anyhow::Result<()> {
    match command {
        AccessCommand::Key(KeyCommand::Make(args)) => make(&args),
        AccessCommand::Key(KeyCommand::List(place)) => list(&place.find()?),
        AccessCommand::Key(KeyCommand::Withdraw { id, place }) => withdraw(&id, &place.find()?),
        AccessCommand::Check(args) => check(&args),
    }
}

impl KeyPlace {
    fn find(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.keys {
            return Ok(path.clone());
        }
        let named = self.config.as_deref().map(access_of).transpose()?.and_then(|access| access.keys);
        named.context(
            "which file of keys? Give --keys FILE, or --config FILE with `keys` in its [access] part",
        )
    }
}

fn access_of(config: &Path) -> anyhow::Result<AccessOptions> {
    let text = std::fs::read_to_string(config).with_context(|| config.display().to_string())?;
    let options = Options::from_toml(&text).map_err(|error| anyhow!("{}: {error}", config.display()))?;
    options.access.with_context(|| format!("{}: there is no [access] part in it", config.display()))
}

fn read(path: &Path) -> anyhow::Result<KeyFile> {
    KeyFile::read(path).map_err(|why| anyhow!(why))
}

fn make(args: &MakeArgs) -> anyhow::Result<()> {
    let path = args.place.find()?;
    let mut file = read(&path)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let expires = args.days.map(|days| now + Duration::from_secs(86_400).as_secs() * days);
    let made = file.make(&args.user, &args.groups, &args.note, now, expires);
    let (key, _) = made.map_err(|why| anyhow!(why))?;
    file.write(&path).map_err(|why| anyhow!(why))?;
    output::print_line(&key);
    Ok(())
}

fn list(path: &Path) -> anyhow::Result<()> {
    let day = |seconds: u64| rfc3339(seconds * 1_000_000).to_string()[..10].to_string();
    output::print_line(&format!(
        "{:<14} {:<20} {:<20} {:<11} {:<11} NOTE",
        "ID", "USER", "GROUPS", "MADE", "UNTIL"
    ));
    for key in read(path)?.keys {
        let until = key.expires.map_or("-".into(), day);
        let (groups, made) = (key.groups.join(","), day(key.created));
        let line =
            format!("{:<14} {:<20} {groups:<20} {made:<11} {until:<11} {}", key.id, key.user, key.note);
        output::print_line(line.trim_end());
    }
    Ok(())
}

fn withdraw(id: &str, path: &Path) -> anyhow::Result<()> {
    let mut file = read(path)?;
    // Somebody in a hurry may paste the key itself.
    let id = id.strip_prefix("lhk_").and_then(|rest| rest.split('_').next()).unwrap_or(id);
    let Some(key) = file.withdraw(id) else { bail!("{}: there is no key '{id}'", path.display()) };
    file.write(path).map_err(|why| anyhow!(why))?;
    output::print_line(&format!("withdrawn: {} of {}", key.id, key.user));
    Ok(())
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let options = access_of(&args.config)?;
    let rules = Rules::new(&options.rule).map_err(|why| anyhow!("{}: {why}", args.config.display()))?;
    let who = match args.user.as_str() {
        ANONYMOUS => Identity::nobody(How::Nothing),
        user => Identity::new(user, &args.groups, How::Key).map_err(|why| anyhow!(why))?,
    };
    let Decision { allowed, rule } = rules.decide(&who, args.verb, &args.resource);
    let word = if allowed { "allowed" } else { "denied" };
    let why = match rule {
        Some(number) => format!("by rule {number}: {}", describe(&options, number)),
        None if rules.is_empty() => {
            "there are no rules: every user with valid credentials may do everything".into()
        }
        None => "no rule covers that".into(),
    };
    output::print_line(&format!("{word}: '{}' on '{}' for {}: {why}", args.verb, args.resource, args.user));
    if !allowed {
        std::process::exit(1);
    }
    Ok(())
}

fn describe(options: &AccessOptions, number: usize) -> String {
    let Some(rule) = options.rule.get(number - 1) else { return String::new() };
    format!(
        "{:?} users={:?} groups={:?} verbs={:?} resources={:?}",
        rule.effect, rule.users, rule.groups, rule.verbs, rule.resources
    )
}
