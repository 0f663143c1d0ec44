//! The log of a node, on stderr.
//!
//! In:    `--log-format` and `RUST_LOG`. Out: one line an event, as text or as JSON.
//! Never: shows what libraries tell their own authors, unless `RUST_LOG` names them.

use std::io::IsTerminal;

use leasehold_server::config::LogFormat;
use tracing_subscriber::EnvFilter;

/// Libraries that log, and what of it operators need: openraft tells of every vote and every connection that it retries, and
/// the journal of this service tells the same in fewer words.
const LIBRARIES: [(&str, &str); 4] =
    [("openraft", "off"), ("h2", "warn"), ("hyper", "warn"), ("rustls", "warn")];

/// Begins to log.
pub(crate) fn start(format: LogFormat) {
    let wanted = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    let filter = filter(wanted.as_deref().unwrap_or("info"));
    let broken = EnvFilter::try_new(&filter).err();
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|_| EnvFilter::new(self::filter("info")));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
        }
    }
    if let Some(error) = broken {
        tracing::warn!("RUST_LOG can't be read and is not used: {error}");
    }
}

/// The filter, with the libraries that it does not name kept quiet.
fn filter(wanted: &str) -> String {
    let quiet = LIBRARIES.iter().filter(|(library, _)| !wanted.contains(library));
    quiet.fold(wanted.to_string(), |filter, (library, level)| format!("{filter},{library}={level}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_they_are_named() {
        assert_eq!(filter("debug"), "debug,openraft=off,h2=warn,hyper=warn,rustls=warn");
        assert_eq!(filter("info,openraft=debug"), "info,openraft=debug,h2=warn,hyper=warn,rustls=warn");
    }
}
