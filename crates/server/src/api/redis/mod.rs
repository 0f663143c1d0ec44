//! The Redis dialect: locks of clients that speak RESP, on a port of its own.
//!
//! In:    a command of a client (`SET key value NX PX 30000`). Out: commands to the table, and its answers as Redis would give them.
//! Never: decides about locks, interprets a script, or says nil (which means "held by another") where the outcome is unknown.
//!
//! A key is a resource, a lock an exclusive claim that refuses to wait, and its value is the proof of ownership.
//!
//! 1. [`answer`]      finds out who asks, and has the command carried out
//! 2. `session.rs`    what concerns the connection: HELLO, AUTH, PING, CLIENT ...
//! 3. `request.rs`    what is asked of locks, from the arguments; `scripts.rs` knows the scripts of lock clients
//! 4. `locks.rs`      the same through the engine

mod locks;
mod log_once;
mod request;
mod scripts;
mod session;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use leasehold_engine::EngineError;

use self::request::LockCommand;
pub use self::scripts::Scripts;
pub use self::session::Session;
use crate::access::rules::Verb;
use crate::access::{Caller, Recognised, Refusal};
use crate::api::refused::limit;
use crate::app::App;
use crate::message::connection::Connection;
use crate::resp::Reply;
use leasehold_core::Rejection;

/// What a command came to.
#[derive(Debug)]
pub struct Answered {
    /// What the client is told.
    pub reply: Reply,
    /// The status that an HTTP client would have got: what metrics count.
    pub status: StatusCode,
    /// Whether the connection ends with it.
    pub closes: bool,
}

impl Answered {
    fn ok(reply: Reply) -> Self {
        Self { reply, status: StatusCode::OK, closes: false }
    }

    fn closing(reply: Reply) -> Self {
        Self { closes: true, ..Self::ok(reply) }
    }
}

/// Why a command was not carried out.
#[derive(Debug)]
enum Refused {
    /// The arguments are wrong.
    Mistake(String),
    /// The caller may not.
    Access(Refusal),
    /// The engine gave no outcome.
    Engine(EngineError),
    /// The table said no.
    Table(Rejection),
    /// The script is not one of those that are known by their hash.
    NoScript,
    /// The key is held with the value that was given.
    SameValue,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Access(refusal)
    }
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<Refused> for Answered {
    fn from(refused: Refused) -> Self {
        let (status, text) = match refused {
            Refused::Mistake(text) => (StatusCode::BAD_REQUEST, format!("ERR {text}")),
            Refused::NoScript => {
                (StatusCode::NOT_FOUND, "NOSCRIPT No matching script. Please use EVAL.".into())
            }
            Refused::SameValue => (
                StatusCode::CONFLICT,
                "TRYAGAIN the key is held with this very value: an answer was lost before (look with GET), or a Redlock client \
                 was given several nodes of one cluster (give it one)"
                    .into(),
            ),
            Refused::Access(refusal) => access_error(&refusal),
            Refused::Engine(error) if error.is_certain() => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("TRYAGAIN nothing happened: {error}"))
            }
            Refused::Engine(_) => {
                let text = "TRYAGAIN the lock may have changed or not: the answer was lost; look with GET";
                (StatusCode::GATEWAY_TIMEOUT, text.into())
            }
            Refused::Table(rejection) => table_error(&rejection),
        };
        Self { reply: Reply::Error(text), status, closes: false }
    }
}

fn access_error(refusal: &Refusal) -> (StatusCode, String) {
    match refusal {
        Refusal::TooMany { wait } => {
            let seconds = wait.as_secs_f64().ceil().max(1.0);
            (StatusCode::TOO_MANY_REQUESTS, format!("TRYAGAIN too many requests: wait {seconds} s"))
        }
        Refusal::Unauthorized { verb, resource, .. } => {
            let text = format!(
                "NOAUTH Authentication required. Send AUTH with an access key that has the right '{verb}' on '{resource}'"
            );
            (StatusCode::UNAUTHORIZED, text)
        }
        Refusal::Forbidden { verb, resource } => (
            StatusCode::FORBIDDEN,
            format!("NOPERM the right '{verb}' on '{resource}' is missing: ask an administrator for it"),
        ),
        Refusal::Withdrawn => (
            StatusCode::UNAUTHORIZED,
            "NOAUTH the credentials of this connection were withdrawn: send AUTH with valid ones".into(),
        ),
    }
}

fn table_error(rejection: &Rejection) -> (StatusCode, String) {
    match (limit(rejection), rejection) {
        (Some((status @ StatusCode::INSUFFICIENT_STORAGE, _)), _) => (status, format!("OOM {rejection}")),
        (_, Rejection::TooEarly(_)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "TRYAGAIN nothing happened: Redis clients need every node of the cluster to be upgraded".into(),
        ),
        (Some((status @ StatusCode::SERVICE_UNAVAILABLE, _)), _) => {
            (status, format!("TRYAGAIN nothing happened: {rejection}"))
        }
        (Some((status, _)), _) => (status, format!("ERR {rejection}")),
        (None, Rejection::NotAlone(_)) => {
            let text =
                "ERR the key is held shared, in slots or as part of a set: use its URL in the claims API";
            (StatusCode::CONFLICT, text.into())
        }
        (None, rejection) => {
            tracing::error!(
                %rejection,
                "a bug, please report it: the table gave an answer that the Redis dialect can't render"
            );
            let text =
                "TRYAGAIN the lock may have changed or not: this is a bug in the service; look with GET";
            (StatusCode::INTERNAL_SERVER_ERROR, text.into())
        }
    }
}

/// The name of every command that is not in the list.
const UNKNOWN: &str = "unknown command";

/// The names of all commands.
#[rustfmt::skip]
const COMMANDS: &[&str] = &[
    "SET", "GET", "EXISTS", "TTL", "PTTL", "EXPIRE", "PEXPIRE", "DEL", "UNLINK", "DELEX", "DELIFEQ", "LEASEHOLD.TOKEN",
    "EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO", "SCRIPT",
    "HELLO", "AUTH", "PING", "ECHO", "SELECT", "CLIENT", "INFO", "COMMAND", "RESET", "QUIT",
];

/// The name of a command in capitals, out of a closed list: what a client makes up has no place in traces.
pub fn command_name(command: &[u8]) -> &'static str {
    let known = COMMANDS.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(command));
    known.copied().unwrap_or(UNKNOWN)
}

/// Carries out one command.
pub async fn answer(
    app: &Arc<App>,
    connection: &Connection,
    session: &mut Session,
    arguments: &[Bytes],
) -> Answered {
    let name: Cow<'static, str> = match command_name(&arguments[0]) {
        UNKNOWN => String::from_utf8_lossy(&arguments[0]).to_ascii_uppercase().into(),
        name => name.into(),
    };
    if let Some(answered) = session.answer(app, connection, &name, &arguments[1..]).await {
        return answered;
    }
    let carried_out = async {
        let caller = recognise(app, connection, session).await?;
        // Scripts that are recognised are kept, so a stranger's are not looked at.
        if name.starts_with("EVAL") || name == "SCRIPT" {
            caller.require_any(&[Verb::Claim, Verb::Read, Verb::Revoke], "*")?;
        }
        let request = LockCommand::parse(&name, &arguments[1..], session.scripts())?;
        let asker = locks::Asker { app, connection, headers: session.headers(), caller: &caller };
        asker.carry_out(request).await
    };
    match carried_out.await {
        // A key that is held is no error, and still worth a number of its own.
        Ok(Reply::Nil) if name == "SET" => {
            Answered { status: StatusCode::CONFLICT, ..Answered::ok(Reply::Nil) }
        }
        Ok(reply) => Answered::ok(reply),
        Err(refused) => refused.into(),
    }
}

/// Who asks, by the credentials of the connection: they may have been withdrawn since they were given.
async fn recognise(app: &App, connection: &Connection, session: &Session) -> Result<Caller, Refusal> {
    match app.guards.access.recognise(connection, session.connection_cache(), session.headers())? {
        Recognised::Known(caller) => Ok(caller),
        Recognised::Unknown(pending) => Ok(Box::pin(app.guards.access.resolve(*pending)).await),
    }
}
