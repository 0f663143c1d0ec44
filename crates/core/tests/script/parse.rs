//! Lines of a script -> commands, filters, times.
//!
//! In:    one line. Out: plain data for the table, or what is wrong with the line, in words.
//! Never: ignores a word it does not know.

use std::sync::Arc;

use leasehold_core::table::{Bounds, ListFilter};
use leasehold_core::{
    Budgets, Command, Data, Ending, Format, Guard, Idempotency, Item, Mode, NewClaim, NewSet, OnBusy, Scope,
    Settings, Status, Target,
};

use super::Names;

/// The words of a line, taken out one by one.
pub(crate) struct Args(Vec<String>);

impl Args {
    /// Words are separated by spaces; within double quotes a space is a letter.
    pub(crate) fn new(line: &str) -> Self {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for letter in line.chars() {
            match (letter, words.last_mut()) {
                ('"', _) => quoted = !quoted,
                (' ', _) if !quoted => words.push(String::new()),
                (letter, Some(word)) => word.push(letter),
                (_, None) => {}
            }
        }
        words.retain(|word| !word.is_empty());
        Self(words)
    }

    /// The next word.
    pub(crate) fn word(&mut self) -> Result<String, String> {
        if self.0.is_empty() { Err("a word is missing".into()) } else { Ok(self.0.remove(0)) }
    }

    /// Whether this word stands there.
    fn flag(&mut self, name: &str) -> bool {
        let place = self.0.iter().position(|word| word == name);
        place.map(|place| self.0.remove(place)).is_some()
    }

    /// The text after `name=`.
    fn text(&mut self, name: &str) -> Option<String> {
        let text = |word: &String| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_string());
        let place = self.0.iter().position(|word| text(word).is_some())?;
        text(&self.0.remove(place))
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let number = |text: String| text.parse().map_err(|_| format!("{name}={text} is no number"));
        self.text(name).map(number).transpose()
    }

    fn time(&mut self, name: &str) -> Result<Option<u64>, String> {
        match self.text(name).as_deref() {
            None | Some("none") => Ok(None),
            Some(text) => time(text).map(Some),
        }
    }

    fn arc(&mut self, name: &str) -> Option<Arc<str>> {
        self.text(name).map(Into::into)
    }

    fn data(&mut self) -> Option<Data> {
        let data = |format| move |text: String| Data { format, bytes: text.into_bytes().into() };
        let json = self.text("json").map(data(Format::Json));
        let large = |text: String| Some("x".repeat(text.parse().ok()?));
        let large = self.text("large").and_then(large);
        json.or_else(|| self.text("data").or(large).map(data(Format::Bytes)))
    }

    fn guard(&mut self) -> Result<Guard, String> {
        Ok(Guard { owner: self.arc("owner"), version: self.number("version")? })
    }

    /// `holder=R`, or the name of a claim.
    fn target(&mut self, names: &mut Names) -> Result<Target, String> {
        match self.arc("holder") {
            Some(resource) => Ok(Target::Holder(resource)),
            None => Ok(Target::Claim(names.id(&self.word()?))),
        }
    }

    /// Nothing may be left over.
    pub(crate) fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("what is {:?}?", self.0)) }
    }
}

/// `5us`, `20ms`, `10s`, `2m`, `1h`.
pub(crate) fn time(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(format!("{text} is no time")),
    };
    digits.parse::<u64>().map(|number| number * unit).map_err(|_| format!("{text} is no time"))
}

/// One command. `before=` of `revoke-all` is the next sequence number unless it is given.
pub(crate) fn command(
    line: &str,
    names: &mut Names,
    next_sequence: u64,
    settings: &Settings,
) -> Result<Command, String> {
    let mut args = Args::new(line);
    let verb = args.word()?;
    let command = match verb.as_str() {
        "activate" => Command::Activate { id: names.id(&args.word()?) },
        "await" => Command::Await {
            id: names.id(&args.word()?),
            wait_us: args.time("wait")?.ok_or("wait= is missing")?,
        },
        "renew" => Command::Renew {
            target: args.target(names)?,
            guard: args.guard()?,
            ttl_us: args.time("ttl")?,
            data: args.data(),
        },
        "release" => finish(Ending::Released, &mut args, names)?,
        "abort" => finish(Ending::Aborted, &mut args, names)?,
        "withdraw" => finish(Ending::Withdrawn, &mut args, names)?,
        "revoke" => finish(Ending::Revoked, &mut args, names)?,
        "revoke-when-gone" => {
            Command::RevokeWhenGone { reason: args.arc("reason"), id: names.id(&args.word()?) }
        }
        "revoke-all" => Command::Revoke {
            resource: args.arc("on"),
            before: args.number("before")?.unwrap_or(next_sequence),
            reason: args.arc("reason"),
        },
        "lock-all" => lock_all(&mut args, names)?,
        "settle" => {
            Command::Settle { resources: std::mem::take(&mut args.0).into_iter().map(Into::into).collect() }
        }
        "tick" => Command::Tick,
        "configure" => Command::Configure(configure(&mut args, settings)?),
        "upgrade" => {
            Command::Upgrade { version: args.number("version")?.ok_or("version= is missing")? as u32 }
        }
        "budgets" => Command::ConfigureBudgets(budgets(&mut args)?),
        "budget" => Command::SetBudget { scope: scope(&mut args)?, bytes: args.number("bytes")? },
        "refuse" => Command::Refuse,
        name => claim(name.strip_suffix(':').ok_or_else(|| format!("what is {name}?"))?, &mut args, names)?,
    };
    args.end()?;
    Ok(command)
}

fn claim(name: &str, args: &mut Args, names: &mut Names) -> Result<Command, String> {
    if args.word()? != "claim" {
        return Err("only a claim has a name".into());
    }
    let resource = args.word()?;
    let on_busy = match (args.flag("refuse"), args.time("wait")?) {
        (true, None) => OnBusy::Refuse,
        (false, Some(wait_us)) => OnBusy::QueueFor { wait_us },
        (false, None) => OnBusy::Queue,
        (true, Some(_)) => return Err("a claim waits or refuses".into()),
    };
    let owner = args.text("owner").unwrap_or_else(|| name.into());
    let mut new = NewClaim::new(names.id(name), &resource, &owner, args.time("ttl")?, on_busy);
    new.data = args.data();
    if let Some(text) = args.text("key") {
        let parts =
            text.split_once('/').and_then(|(key, rest)| Some((key.parse().ok()?, rest.parse().ok()?)));
        let (key, fingerprint) = parts.ok_or("a key is NUMBER/FINGERPRINT")?;
        new.idempotency = Some(Idempotency { key, fingerprint });
    }
    let (session, lapses) = (args.arc("session"), args.flag("lapses"));
    if session.is_none() && !lapses && !resource.contains([',', ':']) && resource != "nothing" {
        return Ok(Command::Claim(new));
    }
    let words = resource.split(',').filter(|word| *word != "nothing");
    Ok(Command::ClaimSet(Box::new(NewSet {
        id: new.id,
        items: words.map(item).collect::<Result<_, _>>()?,
        owner: new.owner,
        ttl_us: new.ttl_us,
        on_busy: new.on_busy,
        data: new.data,
        idempotency: new.idempotency,
        session,
        lapses,
    })))
}

/// `R`, `R:exclusive`, `R:shared` or `R:TAKE/OF`.
fn item(word: &str) -> Result<Item, String> {
    let (resource, mode) = word.split_once(':').unwrap_or((word, "exclusive"));
    let slots = || {
        let (take, of) = mode.split_once('/')?;
        Some(Mode::Slots { take: take.parse().ok()?, of: of.parse().ok()? })
    };
    let mode = match mode {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        mode => slots().ok_or_else(|| format!("{mode} is no mode"))?,
    };
    Ok(Item { resource: resource.into(), mode })
}

fn finish(ending: Ending, args: &mut Args, names: &mut Names) -> Result<Command, String> {
    Ok(Command::Finish {
        purge_data: args.flag("purge"),
        reason: args.arc("reason"),
        guard: args.guard()?,
        target: args.target(names)?,
        ending,
    })
}

fn lock_all(args: &mut Args, names: &mut Names) -> Result<Command, String> {
    let owner = args.arc("owner").ok_or("owner= is missing")?;
    let (ttl_us, data) = (args.time("ttl")?, args.data());
    let mut items = Vec::new();
    while let Ok(word) = args.word() {
        let (name, resource) = word.split_once('@').ok_or_else(|| format!("what is {word}?"))?;
        items.push((names.id(name), resource.into()));
    }
    Ok(Command::LockAll { items, owner, ttl_us, data })
}

fn budgets(args: &mut Args) -> Result<Budgets, String> {
    let default = Budgets::default();
    Ok(Budgets {
        total: args.number("total")?.unwrap_or(default.total),
        per_owner: args.number("per_owner")?.unwrap_or(default.per_owner),
        per_namespace: args.number("per_namespace")?.unwrap_or(default.per_namespace),
        finished: args.number("finished")?.unwrap_or(default.finished),
    })
}

fn scope(args: &mut Args) -> Result<Scope, String> {
    match args.word()?.as_str() {
        "total" => Ok(Scope::Total),
        "finished" => Ok(Scope::Finished),
        "owner" => Ok(Scope::Owner(args.arc("prefix").unwrap_or_default())),
        "namespace" => Ok(Scope::Namespace(args.arc("prefix").unwrap_or_default())),
        scope => Err(format!("{scope} has no budget")),
    }
}

fn configure(args: &mut Args, settings: &Settings) -> Result<Settings, String> {
    Ok(Settings {
        finished_max: args.number("finished_max")?.unwrap_or(settings.finished_max),
        queue_len_max: args.number("queue_len_max")?.unwrap_or(settings.queue_len_max),
        claims_per_owner_max: args.number("claims_per_owner_max")?.unwrap_or(settings.claims_per_owner_max),
        claims_per_namespace_max: args
            .number("claims_per_namespace_max")?
            .unwrap_or(settings.claims_per_namespace_max),
        claims_max: args.number("claims_max")?.unwrap_or(settings.claims_max),
        pickup_grace_us: args.time("pickup_grace")?.unwrap_or(settings.pickup_grace_us),
    })
}

/// The filters of `list`.
pub(crate) fn filter(args: &mut Args) -> Result<ListFilter, String> {
    let mut bounds = |name: &str| -> Result<Bounds, String> {
        let Some(text) = args.text(name) else { return Ok((None, None)) };
        let (min, max) = text.split_once("..").ok_or_else(|| format!("{name} is MIN..MAX"))?;
        let bound = |text: &str| match (text, text.strip_prefix('-')) {
            ("", _) => Ok(None),
            (_, Some(below_zero)) => time(below_zero).map(|time_us| Some(-time_us.cast_signed())),
            (text, None) => time(text).map(|time_us| Some(time_us.cast_signed())),
        };
        Ok((bound(min)?, bound(max)?))
    };
    let (left_us, created_wall_us) = (bounds("left")?, bounds("created")?);
    let (active_us, waiting_us) = (bounds("active")?, bounds("waiting")?);
    let status = |name: String| Status::from_name(&name).ok_or(format!("{name} is no status"));
    Ok(ListFilter {
        resource: args.arc("resource"),
        status: args.text("status").map(status).transpose()?,
        left_us,
        created_wall_us,
        active_us,
        waiting_us,
    })
}
