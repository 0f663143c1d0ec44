//! A TCP stream that watches over its answers.
//!
//! In:    bytes for a client. Out: the same bytes; and, to the connection's [`Delivery`](crate::message::delivery::Delivery),
//!        what became of the answer in doubt.
//! Never: waits for ever for a client that takes nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::message::connection::Connection;

/// How long a closed connection with an answer in doubt is kept to learn what became of it.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// Where the pauses between two looks start; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// A TCP stream that tells its connection's delivery what becomes of answers, and fails once its client takes nothing.
pub struct Wire {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// How long a client may take none of the bytes that it is sent.
    write_timeout: Duration,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The client has closed its end.
    ended: bool,
    /// While it closes with an answer in doubt.
    farewell: Option<Box<Farewell>>,
}

struct Farewell {
    pause: Duration,
    spent: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Wire {
    /// Watches this stream.
    pub fn new(stream: TcpStream, connection: Arc<Connection>, write_timeout: Duration) -> Self {
        Self { stream, connection, write_timeout, stalled: None, ended: false, farewell: None }
    }

    /// What a write came to. One that waits for the client fails when it has waited for the whole timeout.
    fn progress(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            self.stalled = None;
            if written.is_ok() {
                self.connection.delivery.note_write();
            }
            return Poll::Ready(written);
        }
        let timeout = self.write_timeout;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        // The kernel calls a socket writable once a third of its buffer is free. A slow client may have taken less than that.
        match SockRef::from(&self.stream).send(bytes) {
            Ok(written) => self.progress(cx, Poll::Ready(Ok(written)), bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let peer = self.connection.peer;
                tracing::debug!(%peer, ?timeout, "a client takes nothing of its answer: its connection ends");
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client takes nothing of its answer",
                )))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// What became of the answer, once it can be told. Both ends have said their last word then: the client's kernel
    /// has either acknowledged everything, or refused it.
    fn verdict(&mut self, cx: &mut Context<'_>) -> Poll<Verdict> {
        while !self.ended {
            let mut space = [0; 256];
            let mut rest = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut rest)) {
                Ok(()) => self.ended = rest.filled().is_empty(),
                Err(_) => return Poll::Ready(Verdict::Seen),
            }
        }
        // A connection has a peer until both ends are closed, or it was reset.
        match (self.stream.peer_addr(), self.stream.take_error()) {
            (_, Ok(Some(_))) => Poll::Ready(Verdict::Lost),
            (Err(_), _) => Poll::Ready(Verdict::Seen),
            (Ok(_), _) => Poll::Pending,
        }
    }

    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Poll::Ready(verdict) = self.verdict(cx) {
                if verdict == Verdict::Lost {
                    self.connection.delivery.lost();
                }
                return Poll::Ready(());
            }
            let farewell = self.farewell.get_or_insert_with(|| {
                let sleep = Box::pin(tokio::time::sleep(FIRST_PAUSE));
                Box::new(Farewell { pause: FIRST_PAUSE, spent: Duration::ZERO, sleep })
            });
            ready!(farewell.sleep.as_mut().poll(cx));
            farewell.spent += farewell.pause;
            farewell.pause *= 2;
            if farewell.spent > FAREWELL_MAX {
                return Poll::Ready(());
            }
            farewell.sleep = Box::pin(tokio::time::sleep(farewell.pause));
        }
    }
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Seen,
    Lost,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() == before && buf.remaining() > 0 {
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.progress(cx, written, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        self.progress(cx, written, first)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.connection.delivery.note_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.farewell.is_none() {
            let closed = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
            if !self.connection.delivery.is_sent() {
                return Poll::Ready(closed);
            }
        }
        ready!(self.poll_farewell(cx));
        Poll::Ready(Ok(()))
    }
}
