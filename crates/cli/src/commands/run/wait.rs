//! Waits for a claim's turn, and shows how on a terminal.
//!
//! In:    a claim that waits. Out: the claim that holds; on a terminal a line that says who holds it and where we are.
//! Never: writes to a file or a pipe more than troubles, each once.

use std::io::{IsTerminal, Write as _};

use std::time::Duration;

use leasehold_client::{Api, Claim, Error, Pending, Phase, Progress};

use super::super::{complain, output};

/// How often someone who looks at a terminal sees something new.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn acquired(
    pending: Pending,
    api: Api,
    resource: &str,
    is_quiet: bool,
) -> Result<Claim, Error> {
    let mut phases = pending.phases();
    let acquired = pending.acquired();
    tokio::pin!(acquired);
    let is_looked_at = !is_quiet && std::io::stderr().is_terminal();
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut progress = Progress::default();
    let mut line = Line { resource, is_shown: false, is_quiet, trouble: None };
    loop {
        tokio::select! {
            claim = &mut acquired => {
                line.clear();
                return claim;
            }
            Ok(()) = phases.changed() => {
                if let Phase::Waiting(now) = &*phases.borrow_and_update() {
                    progress = (**now).clone();
                    line.show(&progress);
                }
            }
            _ = looks.tick(), if is_looked_at && progress.claim.is_some() => {
                let looking = look(&api, resource, &mut progress);
                if let Ok(Ok(())) = tokio::time::timeout(LOOK_EVERY, looking).await {
                    line.show(&progress);
                }
            }
        }
    }
}

/// Asks who holds the resource now, and where we are in the queue.
async fn look(api: &Api, resource: &str, progress: &mut Progress) -> Result<(), Error> {
    let holders = api.list(&[("resource", resource), ("status", "active")], 1).await?;
    progress.holder = holders.into_iter().next();
    if let Some(claim) = &progress.claim {
        progress.position = api.get(claim).await?.position;
    }
    Ok(())
}

/// The line on the terminal.
struct Line<'a> {
    resource: &'a str,
    is_shown: bool,
    is_quiet: bool,
    trouble: Option<String>,
}

impl Line<'_> {
    fn show(&mut self, progress: &Progress) {
        if self.is_quiet {
            return;
        }
        if progress.trouble != self.trouble {
            self.trouble.clone_from(&progress.trouble);
            self.clear();
            if let Some(trouble) = &self.trouble {
                complain(&format!("{}; trying again", output::plain(trouble)));
            }
        }
        if !std::io::stderr().is_terminal() || (progress.position.is_none() && progress.holder.is_none()) {
            return;
        }
        self.clear();
        let place =
            progress.position.map_or(String::new(), |position| format!(", place {position} in the queue"));
        let holder = progress.holder.as_ref().map_or(String::new(), |holder| {
            let since = holder
                .active_duration
                .map_or(String::new(), |held| format!(" for {}", output::seconds(held)));
            format!(", held by {}{since}", output::holder(holder))
        });
        let text = format!("leasehold: waiting for '{}'{place}{holder}", output::plain(self.resource));
        let text: String = text.chars().take(200).collect();
        write!(std::io::stderr(), "{text}").ok();
        self.is_shown = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            write!(std::io::stderr(), "\r\x1b[K").ok();
        }
    }
}
