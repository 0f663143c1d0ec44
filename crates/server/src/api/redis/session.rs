//! What concerns a connection of a Redis client, and no lock.
//!
//! In:    HELLO, AUTH, PING, SELECT, CLIENT, INFO, COMMAND, QUIT. Out: what clients want to hear before they start.
//! Never: touches the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::AUTHORIZATION;

use super::log_once::OncePerMinute;
use super::{Answered, Refused, Scripts, recognise};
use crate::access::ConnectionCache;
use crate::access::rules::Verb;
use crate::app::App;
use crate::message::connection::Connection;
use crate::message::headers::Headers;
use crate::resp::{Limits, Protocol, Reply};

/// What a client may send: a thousand keys, or the largest value.
const LIMITS: Limits = Limits { arguments_max: 1024, argument_len_max: 64 << 10, command_len_max: 256 << 10 };
/// The same before it has said who it is, where that matters.
const LIMITS_OF_STRANGERS: Limits =
    Limits { arguments_max: 16, argument_len_max: 16 << 10, command_len_max: 32 << 10 };
/// The longest name that a connection may give itself.
const NAME_LEN_MAX: usize = 256;
/// What clients take for the version of Redis: the first with everything that lock clients look for.
const REDIS_VERSION: &str = "7.4.0";

/// What a connection has said about itself.
#[derive(Debug, Default)]
pub struct Session {
    protocol: Protocol,
    /// The credentials, in the form in which an HTTP client would send them.
    headers: Headers,
    connection_cache: Arc<ConnectionCache>,
    is_known: bool,
    /// The client has begun a transaction, which is refused as a whole.
    in_transaction: bool,
    name: Bytes,
    id: u64,
    scripts: Arc<Scripts>,
}

impl Session {
    /// A client that has said nothing yet.
    pub fn new(scripts: Arc<Scripts>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), scripts, ..Self::default() }
    }

    /// The version that its replies are written in.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What it may send.
    pub fn limits(&self, app: &App, connection: &Connection) -> Limits {
        if self.is_stranger(app, connection) { LIMITS_OF_STRANGERS } else { LIMITS }
    }

    /// Whether it has to say who it is, and did not.
    pub fn is_stranger(&self, app: &App, connection: &Connection) -> bool {
        app.guards.access.is_on() && !self.is_known && connection.certificate.get().is_none()
    }

    /// Whom its credentials stood for last.
    pub fn connection_cache(&self) -> &Arc<ConnectionCache> {
        &self.connection_cache
    }

    pub(super) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    pub(super) fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The answer, if the command is about the connection.
    pub(super) async fn answer(
        &mut self,
        app: &App,
        connection: &Connection,
        name: &str,
        arguments: &[Bytes],
    ) -> Option<Answered> {
        let wrong = || Refused::Mistake(wrong_number(name)).into();
        if let Some(answered) = self.transaction(name) {
            return Some(answered);
        }
        Some(match (name, arguments) {
            // A web page that was made to send requests here. Redis closes such connections, too.
            ("POST" | "HOST:", _) => {
                static HTTP: OncePerMinute = OncePerMinute::new();
                if HTTP.is_time() {
                    let peer = connection.peer;
                    tracing::warn!(%peer, "an HTTP request arrived on the port for Redis clients: the connection was closed");
                }
                Answered::closing(Reply::Error("ERR this port speaks the protocol of Redis, not HTTP".into()))
            }
            ("HELLO", arguments) => self.hello(app, connection, arguments).await,
            ("AUTH", [password] | [_, password]) => self
                .sign_in(app, connection, password)
                .await
                .map_or_else(|no| no, |()| Answered::ok(Reply::OK)),
            ("AUTH", _) => wrong(),
            ("PING", []) => Answered::ok(Reply::Simple("PONG")),
            ("PING" | "ECHO", [text]) => Answered::ok(Reply::Bulk(text.to_vec())),
            ("PING" | "ECHO", _) => wrong(),
            ("QUIT", _) => Answered::closing(Reply::OK),
            ("RESET", []) => {
                let (id, scripts, connection_cache) =
                    (self.id, self.scripts.clone(), self.connection_cache.clone());
                *self = Self { id, scripts, connection_cache, ..Self::default() };
                Answered::ok(Reply::Simple("RESET"))
            }
            ("SELECT", [database]) if **database == *b"0" => Answered::ok(Reply::OK),
            ("SELECT", [_]) => {
                Refused::Mistake("DB index is out of range: there is only database 0".into()).into()
            }
            ("CLIENT", [what, rest @ ..]) => self.client(connection, what, rest),
            ("INFO", _) => Answered::ok(Reply::Bulk(info().into_bytes())),
            // Clients ask which commands there are, and go on without an answer.
            ("COMMAND", _) => Answered::ok(Reply::Array(Vec::new())),
            _ => return None,
        })
    }

    /// Transactions are refused as a whole: what stands between MULTI and EXEC is not carried out.
    fn transaction(&mut self, name: &str) -> Option<Answered> {
        let nothing = |kind: &str| {
            let text = format!("{kind} transactions are not supported on this port; nothing happened");
            Answered { status: StatusCode::BAD_REQUEST, ..Answered::ok(Reply::Error(text)) }
        };
        match (name, self.in_transaction) {
            ("MULTI", _) => {
                self.in_transaction = true;
                Some(nothing("ERR"))
            }
            ("EXEC", true) => {
                self.in_transaction = false;
                Some(nothing("EXECABORT"))
            }
            ("DISCARD", true) => {
                self.in_transaction = false;
                Some(Answered::ok(Reply::OK))
            }
            ("RESET" | "QUIT" | "POST" | "HOST:", _) | (_, false) => None,
            (_, true) => Some(nothing("ERR")),
        }
    }

    /// Takes the names that Redis takes, which stand in one line of a list, up to a length.
    fn set_name(&mut self, name: &[u8]) -> Result<(), Refused> {
        if name.len() > NAME_LEN_MAX || !name.iter().all(u8::is_ascii_graphic) {
            return Err(Refused::Mistake(format!(
                "Client names cannot contain spaces, newlines or special characters, nor more than {NAME_LEN_MAX} bytes."
            )));
        }
        self.name = Bytes::copy_from_slice(name);
        Ok(())
    }

    /// `HELLO [2|3] [AUTH user password] [SETNAME name]`
    async fn hello(&mut self, app: &App, connection: &Connection, arguments: &[Bytes]) -> Answered {
        let (mut rest, mut protocol) = (arguments, self.protocol);
        if let [version, behind @ ..] = rest {
            protocol = match &**version {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ => {
                    let text = "NOPROTO unsupported protocol version: this port speaks 2 and 3".into();
                    return Answered { status: StatusCode::BAD_REQUEST, ..Answered::ok(Reply::Error(text)) };
                }
            };
            rest = behind;
        }
        while let [word, behind @ ..] = rest {
            rest = match (word.to_ascii_uppercase().as_slice(), behind) {
                (b"AUTH", [_, password, behind @ ..]) => {
                    if let Err(refusal) = self.sign_in(app, connection, password).await {
                        return refusal;
                    }
                    behind
                }
                (b"SETNAME", [name, behind @ ..]) => match self.set_name(name) {
                    Ok(()) => behind,
                    Err(refused) => return refused.into(),
                },
                _ => {
                    let text = format!("Syntax error in HELLO option '{}'", String::from_utf8_lossy(word));
                    return Refused::Mistake(text).into();
                }
            };
        }
        self.protocol = protocol;
        let text = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        Answered::ok(Reply::Map(vec![
            ("server", text("leasehold")),
            ("version", text(REDIS_VERSION)),
            ("proto", Reply::Integer(if protocol == Protocol::Resp3 { 3 } else { 2 })),
            ("id", Reply::Integer(self.id.cast_signed())),
            ("mode", text("standalone")),
            ("role", text("master")),
            ("modules", Reply::Array(Vec::new())),
        ]))
    }

    /// An access key, or a token of an identity provider, as the password of any user.
    async fn sign_in(&mut self, app: &App, connection: &Connection, password: &[u8]) -> Result<(), Answered> {
        if !app.guards.access.is_on() {
            let text = "AUTH <password> called without any password configured for the default user: \
                        this node has no access control (see docs/security.md)";
            return Err(Refused::Mistake(text.into()).into());
        }
        let credentials = [b"Bearer ", password].concat();
        let before = std::mem::replace(&mut self.headers, Headers::from_iter([(AUTHORIZATION, credentials)]));
        match recognise(app, connection, self).await {
            Ok(caller) if caller.is_known() => {
                self.is_known = true;
                Ok(())
            }
            // Wrong credentials are never taken for none, nor for the ones before: they stay until better ones come.
            Ok(caller) => {
                self.is_known = false;
                caller.note_refusal(Verb::Claim, "*", StatusCode::UNAUTHORIZED);
                Err(Answered {
                    reply: Reply::Error(
                        "WRONGPASS invalid username-password pair or user is disabled.".into(),
                    ),
                    status: StatusCode::UNAUTHORIZED,
                    closes: false,
                })
            }
            // Nobody has looked at them.
            Err(refusal) => {
                self.headers = before;
                Err(Refused::Access(refusal).into())
            }
        }
    }

    fn client(&mut self, connection: &Connection, what: &[u8], rest: &[Bytes]) -> Answered {
        Answered::ok(match (what.to_ascii_uppercase().as_slice(), rest) {
            (b"SETNAME", [name]) => match self.set_name(name) {
                Ok(()) => Reply::OK,
                Err(refused) => return refused.into(),
            },
            (b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", _) => Reply::OK,
            (b"GETNAME", []) if self.name.is_empty() => Reply::Nil,
            (b"GETNAME", []) => Reply::Bulk(self.name.to_vec()),
            (b"ID", []) => Reply::Integer(self.id.cast_signed()),
            (b"INFO", []) => {
                let name = String::from_utf8_lossy(&self.name);
                Reply::Bulk(format!("id={} addr={} name={name}\n", self.id, connection.peer).into_bytes())
            }
            (what, _) => {
                let what = String::from_utf8_lossy(what).to_ascii_uppercase();
                return Refused::Mistake(format!("CLIENT {what} is not supported on this port")).into();
            }
        })
    }
}

/// Some clients wait until a server says that it is not loading.
fn info() -> String {
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nleasehold_version:{}\r\n\
         # Replication\r\nrole:master\r\n# Persistence\r\nloading:0\r\n",
        env!("CARGO_PKG_VERSION")
    )
}

pub(super) fn wrong_number(name: &str) -> String {
    format!("wrong number of arguments for '{}' command", name.to_ascii_lowercase())
}
