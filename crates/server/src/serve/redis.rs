//! One connection of a Redis client, from its first byte to its last.
//!
//! In:    a byte stream. Out: commands to `api/redis`, one after the other; their replies back, counted and traced.
//! Never: keeps half a command for longer than a request may take, or more bytes than there is room for; a client that does
//!        not read its replies is left (`http/wire.rs`).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tracing::Level;

use super::connection::{Counted, over};
use super::placement::Near;
use super::trace::CommandSpan;
use crate::api::redis::{self, Scripts, Session};
use crate::app::App;
use crate::app::budget::Place;
use crate::message::connection::Connection;
use crate::observe::Dialect;
use crate::resp::{Parser, Reply};

/// Bytes that are asked for at a time.
const READ_LEN: usize = 4 << 10;
/// Replies of a pipeline that wait for the next command: more are sent first.
const UNSENT_MAX: usize = 16 << 10;
/// Commands of a pipeline after which other connections have a turn.
const TURN_LEN: usize = 32;
/// What a connection without a place is told, in the words of Redis.
pub(super) const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

/// Serves one client until it goes, the node stops, or its credentials are withdrawn.
pub(super) async fn talk<S>(
    app: Arc<App>,
    stream: S,
    connection: Arc<Connection>,
    near: Option<Near>,
    scripts: Arc<Scripts>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let _counted = Counted::new(&app);
    let session = Session::new(scripts);
    let mut over = over(&app, session.connection_cache());
    let mut talk = Talk {
        stream,
        session,
        parser: Parser::default(),
        input: BytesMut::new(),
        output: Vec::new(),
        room: app.body_bytes.none_yet(&connection.peer_name),
        counted: 0,
        began: None,
        near,
        app: &app,
        connection: &connection,
    };
    loop {
        match talk.answer_all().await {
            Ok(true) => {}
            Ok(false) | Err(_) => break,
        }
        let received = tokio::select! {
            biased;
            () = &mut over => break,
            received = talk.receive() => received,
        };
        if received.is_err() {
            break;
        }
    }
    connection.delivery.close();
    talk.stream.shutdown().await.ok();
}

/// A connection, and what came over it so far.
struct Talk<'a, S> {
    stream: S,
    session: Session,
    parser: Parser,
    input: BytesMut,
    output: Vec<u8>,
    /// Room for a command that comes in pieces.
    room: Place,
    /// Bytes that this room is for.
    counted: usize,
    /// When the command began that has not come whole yet.
    began: Option<Instant>,
    near: Option<Near>,
    app: &'a Arc<App>,
    connection: &'a Connection,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Talk<'_, S> {
    /// Answers every command that has come whole. False: the connection ends.
    async fn answer_all(&mut self) -> std::io::Result<bool> {
        let mut answered = 0;
        let mut goes_on = true;
        while goes_on {
            let limits = self.session.limits(self.app, self.connection);
            match self.parser.next(&mut self.input, limits) {
                Ok(None) => break,
                Ok(Some(arguments)) if arguments.is_empty() => {}
                Ok(Some(arguments)) => goes_on = self.answer(&arguments).await,
                Err(wrong) => {
                    self.count(StatusCode::BAD_REQUEST);
                    Reply::Error(format!("ERR {wrong}")).write(self.session.protocol(), &mut self.output);
                    goes_on = false;
                }
            }
            answered += 1;
            if self.output.len() >= UNSENT_MAX {
                self.send().await?;
            }
            if answered % TURN_LEN == 0 {
                tokio::task::yield_now().await;
            }
        }
        // When all near places are taken, answers of connections on other threads go first, as with HTTP.
        if answered > 0 && self.near.as_ref().is_some_and(Near::is_last) {
            tokio::task::yield_now().await;
        }
        self.send().await?;
        Ok(goes_on)
    }

    /// Answers one command. False: the connection ends.
    async fn answer(&mut self, arguments: &[Bytes]) -> bool {
        self.connection.delivery.seen();
        let started = tracing::enabled!(target: "leasehold::request", Level::DEBUG).then(Instant::now);
        let exporter = self.app.observer.exporter.get();
        let span = exporter.and_then(|exporter| CommandSpan::begin(&arguments[0], exporter));
        let (app, connection, session) = (self.app, self.connection, &mut self.session);
        let answered = match &span {
            None => redis::answer(app, connection, session, arguments).await,
            Some(span) => span.follow(redis::answer(app, connection, session, arguments)).await,
        };
        self.count(answered.status);
        if let Some(span) = span {
            span.answered(&self.connection.peer_name, &answered);
        }
        if let Some(started) = started {
            let (status, took_us) = (answered.status.as_u16(), started.elapsed().as_micros() as u64);
            // Arguments may be secrets: the command's name is all that is said.
            let command = redis::command_name(&arguments[0]);
            let peer = &*self.connection.peer_name;
            tracing::debug!(target: "leasehold::request", %command, status, took_us, peer, "answered");
        }
        answered.reply.write(self.session.protocol(), &mut self.output);
        !answered.closes
    }

    fn count(&self, status: StatusCode) {
        self.app.observer.metrics.answered(Dialect::Redis, status.as_u16());
    }

    async fn send(&mut self) -> std::io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.stream.flush().await?;
            self.output.clear();
            self.output.shrink_to(UNSENT_MAX);
        }
        Ok(())
    }

    /// Receives more. An idle client may be silent for as long as it likes. A client that has begun a command, and one that has
    /// to say who it is and did not, may not: it would keep memory, or a connection, from others.
    async fn receive(&mut self) -> std::io::Result<()> {
        let inside = self.parser.is_inside(&self.input);
        self.began = if inside { Some(self.began.unwrap_or_else(Instant::now)) } else { None };
        let since =
            self.began.or_else(|| self.session.is_stranger(self.app, self.connection).then(Instant::now));
        self.count_room()?;
        // The arguments are gone: the room that they had is used again, unless one of them was large.
        let has_room = self.input.try_reclaim(READ_LEN);
        if !inside && self.input.capacity() > 2 * READ_LEN {
            self.input = BytesMut::with_capacity(READ_LEN);
        } else if !has_room {
            self.input.reserve(READ_LEN);
        }
        let read = self.stream.read_buf(&mut self.input);
        let received = match since {
            Some(since) => match timeout_at(since + self.app.patience(self.connection), read).await {
                Ok(received) => received?,
                Err(_) => return Err(std::io::ErrorKind::TimedOut.into()),
            },
            None => read.await?,
        };
        if received == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Half a command takes memory until it is whole: all of them together have a budget, and each client a share of it.
    fn count_room(&mut self) -> std::io::Result<()> {
        let held = self.input.len() + self.parser.held();
        if held <= READ_LEN {
            if self.counted > 0 {
                (self.room, self.counted) = (self.app.body_bytes.none_yet(&self.connection.peer_name), 0);
            }
            return Ok(());
        }
        if held > self.counted {
            let more = held - self.counted;
            self.room.extend(more).map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
            self.counted = held;
        }
        Ok(())
    }
}
