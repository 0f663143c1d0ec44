//! Waits for a claim's turn, and shows how.
//!
//! In:    a claim that waits. Out: the claim that holds, or why it does not; on a terminal one line that says who holds the
//!        resource and where we are; elsewhere a line when the wait begins and one when it is over.
//! Never: shows this claim as the holder that it waits for, and never lets showing hold up the claim.

use std::io::IsTerminal;
use std::time::Duration;

use leasehold_client::BootInstant;
use leasehold_client::ClaimInfo;
use leasehold_client::{Api, Changes, Claim, Error, Item, Mode, Pending, Phase, Progress};
use rustix::termios::tcgetwinsize;

use super::super::{output, wanted};
use super::messages;

/// How often someone who looks at a terminal sees something new.
const TICK: Duration = Duration::from_secs(1);
/// How long a server may be silent before that is said.
const SILENCE: Duration = Duration::from_secs(2);
/// How long one look at the holder may take.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Resources of a set that are looked at.
const LOOKS_MAX: usize = 10;
/// Holders of slots that are looked at.
const HOLDERS_MAX: usize = 1000;
/// Columns of a terminal that does not say how many it has.
const WIDTH_DEFAULT: usize = 80;

/// A claim that was not acquired: why, and who held the resource, as far as that is known.
pub(super) struct NotAcquired {
    pub(super) error: Error,
    pub(super) holder: Option<ClaimInfo>,
}

pub(super) async fn acquired(
    pending: Pending,
    api: &Api,
    items: &[Item],
    is_quiet: bool,
    waits: bool,
) -> Result<Claim, NotAcquired> {
    let mut phases = pending.phases();
    let acquired = pending.acquired();
    tokio::pin!(acquired);
    let looking = look(api, items, phases.clone());
    tokio::pin!(looking);
    let (mut has_looked, mut ticks) =
        (false, tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK));
    let names: Vec<&str> = items.iter().map(|item| item.resource.as_str()).collect();
    let mut show = Show::new(wanted::label(&names), is_quiet, waits);
    loop {
        tokio::select! {
            claim = &mut acquired => {
                show.over(claim.is_ok());
                return claim.map_err(|error| NotAcquired { error, holder: show.holder() });
            }
            Some(Phase::Waiting(now)) = phases.next() => show.learn(&now),
            // Only the next answer to the claim's own question would tell who holds it.
            holder = &mut looking, if !has_looked => {
                has_looked = true;
                show.first_look(holder);
            }
            _ = ticks.tick() => show.tick(),
        }
    }
}

/// Who holds the resource, once the claim is in the queue.
async fn look(api: &Api, items: &[Item], mut phases: Changes<Phase>) -> Option<ClaimInfo> {
    let mut phase = phases.now();
    while !matches!(&phase, Phase::Waiting(progress) if progress.claim.is_some()) {
        match phases.next().await {
            Some(next) => phase = next,
            None => return std::future::pending().await,
        }
    }
    holder(api, items).await
}

/// Who holds what keeps one of these items from being had, or, if nobody does, who came first for one of them: as far as the
/// caller may read, and as far as a server says so soon.
pub(crate) async fn holder(api: &Api, items: &[Item]) -> Option<ClaimInfo> {
    let items = &items[..items.len().min(LOOKS_MAX)];
    let looking = async {
        for item in items {
            // All slots may be held, each by another claim.
            let most = if let Mode::Slots { .. } = item.mode { HOLDERS_MAX } else { 1 };
            let found = api.list(&[("resource", &item.resource), ("status", "active")], most).await.ok()?;
            if let Some(holder) = in_the_way(item, found) {
                return Some(holder);
            }
        }
        for item in items {
            let found = api.list(&[("resource", &item.resource), ("status", "waiting")], 1).await.ok()?;
            if let Some(first) = found.into_iter().next() {
                return Some(first);
            }
        }
        None
    };
    tokio::time::timeout(LOOK_WITHIN, looking).await.ok()?
}

/// The first holder, unless there is room for the item beside all of them.
fn in_the_way(item: &Item, holders: Vec<ClaimInfo>) -> Option<ClaimInfo> {
    // A claim without items holds its resource exclusively.
    let held = |claim: &ClaimInfo| claim.items.iter().find(|held| held.resource == item.resource).cloned();
    let has_room = match item.mode {
        Mode::Shared => {
            holders.iter().all(|claim| held(claim).is_some_and(|held| held.mode.as_deref() == Some("shared")))
        }
        Mode::Slots { take, of } => {
            let taken = holders.iter().map(|claim| held(claim).and_then(|held| held.take).unwrap_or(of));
            taken.fold(take, u32::saturating_add) <= of
        }
        _ => holders.is_empty(),
    };
    holders.into_iter().next().filter(|_| !has_room)
}

/// What has been said, and the line on the terminal.
struct Show {
    resource: String,
    is_quiet: bool,
    /// Who does not wait has nothing to say about waiting.
    waits: bool,
    is_terminal: bool,
    started: BootInstant,
    progress: Progress,
    /// When the holder was last heard of: its time goes on from there.
    seen: BootInstant,
    has_looked: bool,
    is_line_shown: bool,
    has_said_waiting: bool,
    has_said_silence: bool,
}

impl Show {
    fn new(resource: String, is_quiet: bool, waits: bool) -> Self {
        let now = BootInstant::now();
        Self {
            resource,
            is_quiet,
            waits,
            is_terminal: std::io::stderr().is_terminal(),
            started: now,
            progress: Progress::default(),
            seen: now,
            has_looked: false,
            is_line_shown: false,
            has_said_waiting: false,
            has_said_silence: false,
        }
    }

    fn learn(&mut self, now: &Progress) {
        if now.trouble != self.progress.trouble
            && let Some(trouble) = &now.trouble
        {
            self.say(&format!("{trouble}; retrying"));
        }
        let known = std::mem::replace(&mut self.progress, now.clone()).holder;
        match now.holder {
            Some(_) => self.seen = BootInstant::now(),
            None => self.progress.holder = known,
        }
        self.update();
    }

    fn first_look(&mut self, holder: Option<ClaimInfo>) {
        self.has_looked = true;
        if let Some(holder) = holder {
            (self.progress.holder, self.seen) = (Some(holder), BootInstant::now());
        }
        self.update();
    }

    /// The holder as it is now. That is never this claim, even if it was promoted while somebody looked.
    fn holder(&self) -> Option<ClaimInfo> {
        let is_other = |holder: &&ClaimInfo| Some(holder.id()) != self.progress.claim.as_deref();
        let mut holder = self.progress.holder.as_ref().filter(is_other)?.clone();
        let later = BootInstant::now().since(self.seen).as_secs_f64();
        holder.active_duration = holder.active_duration.map(|held| held + later);
        Some(holder)
    }

    fn tick(&mut self) {
        let is_silent = self.progress.claim.is_none() && self.progress.trouble.is_none();
        if is_silent && !self.has_said_silence && BootInstant::now().since(self.started) >= SILENCE {
            self.has_said_silence = true;
            self.say(&format!("no server has answered yet; still asking for '{}'", self.resource));
        }
        self.update();
    }

    fn update(&mut self) {
        if self.is_quiet || !self.waits || self.progress.claim.is_none() {
            return;
        }
        if self.is_terminal {
            self.clear();
            let width = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
            let width = if width == 0 { WIDTH_DEFAULT } else { width };
            messages::write(fitting(&format!("leasehold: {}", self.line()), width - 1));
            self.is_line_shown = true;
        } else if self.has_looked && !std::mem::replace(&mut self.has_said_waiting, true) {
            messages::say(&self.line());
        }
    }

    fn line(&self) -> String {
        let place = self.progress.position;
        let place = place.map_or(String::new(), |place| format!(", place {place} in the queue"));
        let holder = self.holder().map_or(String::new(), |holder| format!(", {}", output::held_by(&holder)));
        output::plain(&format!("waiting for '{}'{place}{holder}", self.resource))
    }

    fn over(&mut self, is_acquired: bool) {
        self.clear();
        if is_acquired && self.has_said_waiting {
            let waited = BootInstant::now().since(self.started).as_secs_f64();
            messages::say(&format!("'{}' was acquired after {}", self.resource, output::seconds(waited)));
        }
    }

    fn say(&mut self, what: &str) {
        if !self.is_quiet {
            self.clear();
            messages::say(&output::plain(what));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_line_shown) {
            messages::write("\r\x1b[K".into());
        }
    }
}

/// As much of a line as fits into this number of columns. Characters other than ASCII count as two: some are that wide.
fn fitting(line: &str, width: usize) -> String {
    let mut used = 0;
    line.chars()
        .take_while(|c| {
            used += if c.is_ascii() { 1 } else { 2 };
            used <= width
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_breaks() {
        assert_eq!(fitting("waiting", 80), "waiting");
        assert_eq!(fitting("waiting", 4), "wait");
        assert_eq!(fitting("日本", 3), "日");
    }

    #[test]
    fn a_waiter_is_never_shown_as_the_holder() {
        let claim = |id: &str| {
            serde_json::from_value::<ClaimInfo>(serde_json::json!({
            "url": format!("http://h/v1/claims/{id}/"), "resource": "r", "status": "active",
            "user_data": {"host": id} }))
        };
        let mut show = Show::new("r".into(), false, true);
        show.is_terminal = false;
        let mut progress = Progress::default();
        progress.claim = Some("mine".into());
        progress.holder = claim("other").ok();
        show.learn(&progress);
        assert!(show.line().contains("held by other"), "{}", show.line());
        show.first_look(claim("mine").ok());
        assert!(!show.line().contains("held by"), "{}", show.line());
        progress.holder = claim("mine").ok();
        show.learn(&progress);
        assert!(!show.line().contains("held by") && show.holder().is_none(), "{}", show.line());
    }
}
