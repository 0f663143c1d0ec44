//! HTTP/1.1 on one connection: requests in, answers out, one after the other.
//!
//! In:    the bytes of a client; a function that answers requests, and one that words refusals.
//! Out:   requests with their bodies, to the first; answers as bytes.
//! Never: imports anything else of this service. Never reads on while a client does not take its answer, works for a client
//!        that has hung up, or waits for ever for a head.
//!
//! A request that came in one piece, as nearly all do, is answered without a buffer, a channel or a timer of its own.
//! With hyper, which speaks HTTP/2 here, a request takes half as much processor time again (docs/notes/speed.md).
//! `httparse` reads heads, and `http` reads targets. `tests/http1_against_hyper.rs` gives hyper and this module the same bytes,
//! and lists every difference.

mod exchange;
mod head;
mod input;
mod render;
mod rest;

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Method, Response, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

pub use self::exchange::{AnswerBody, Body, BodyError, BodySource, HttpRefusal, Outgoing, Request};
pub use self::head::Field;
use self::head::{BadHead, HEAD_BYTES_MAX, Head, Length};
use self::input::Input;
use self::render::Ending;
use self::rest::{Rest, Step};

/// What is read at a time, and what a connection keeps for it.
const ROOM: usize = 4096;
/// With less room than this the buffer is made anew, or grows.
const ROOM_MIN: usize = 512;
/// Bytes of further requests that are kept while one is answered.
const PIPED_MAX: usize = 16 << 10;
/// A body that nobody read is thrown away up to this; behind a larger one the connection ends.
const SKIP_MAX: u64 = 64 << 10;
/// A body up to this goes out with its head: one copy costs less than two calls of the kernel.
const ONE_PIECE_MAX: usize = 64 << 10;

/// A client's connection.
pub struct Http1<S, B> {
    stream: S,
    input: Input,
    output: Vec<u8>,
    /// Bytes of a body that nobody read, before the next request.
    skip: u64,
    /// What a client is told that asks for nothing in time.
    unasked: Option<Response<B>>,
}

/// Why there is no next request.
#[derive(Debug)]
enum End {
    /// The client has gone, or never was one of ours.
    Gone,
    /// The node stops, and nothing had been asked yet.
    Stopped,
    /// The head did not come in time; some of it had come, or nothing.
    TooSlow { begun: bool },
    /// It was no request.
    Refused(StatusCode, &'static str),
}

/// What of a request matters to the form of its answer.
struct Form {
    is_head: bool,
    version: Version,
    keeps: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin, B: AnswerBody> Http1<S, B> {
    /// A fresh connection. `unasked` is what a client is told that asks for nothing in time.
    pub fn new(stream: S, unasked: Option<Response<B>>) -> Self {
        Self { stream, input: Input::default(), output: Vec::new(), skip: 0, unasked }
    }

    /// Answers requests until the client goes, sends no request for `patience`, or the node stops. An answer that `stands_back`
    /// is sent after all that is ready to run. `refuse` words the answer to what is no request. Returns the stream, with this end
    /// of it closed.
    pub async fn serve<A, F>(
        mut self,
        patience: Option<Duration>,
        stopped: impl Future<Output = ()>,
        is_stopping: impl Fn() -> bool,
        stands_back: impl Fn() -> bool,
        refuse: impl Fn(&HttpRefusal) -> Response<B>,
        mut answer: A,
    ) -> S
    where
        A: FnMut(Request) -> F,
        F: Future<Output = Response<B>>,
    {
        let mut stopped = pin!(stopped);
        let mut timer = pin!(patience.map(tokio::time::sleep));
        let end = loop {
            let deadline = patience.map(|patience| Instant::now() + patience);
            let head = match self.next_head(stopped.as_mut(), timer.as_mut(), deadline).await {
                Ok(head) => head,
                Err(end) => break end,
            };
            let (form, request, mut rest) = self.request(head);
            let answered = self.answered(pin!(answer(request)), &mut rest).await;
            let Some(response) = answered else { break End::Gone };
            if stands_back() {
                tokio::task::yield_now().await;
            }
            let form = Form { keeps: form.keeps && !is_stopping(), ..form };
            match self.send(response, form, &rest).await {
                Ok(true) => {}
                Ok(false) | Err(_) => break End::Gone,
            }
        };
        let unasked = self.unasked.take().filter(|_| matches!(end, End::TooSlow { begun: false }));
        if let Some(response) = end.refusal(patience).as_ref().map(refuse).or(unasked) {
            tracing::debug!(?end, "a connection ended early");
            let form = Form { is_head: false, version: Version::HTTP_11, keeps: false };
            Box::pin(self.send(response, form, &Rest::none())).await.ok();
        }
        self.stream.shutdown().await.ok();
        self.stream
    }

    /// Waits for a head. The timer was set for an earlier one, mostly: it is set anew when it fires, not with every request.
    async fn next_head(
        &mut self,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
        mut timer: Pin<&mut Option<Sleep>>,
        deadline: Option<Instant>,
    ) -> Result<Head, End> {
        let (mut seen, mut is_stopping) = (0, false);
        std::future::poll_fn(|cx| {
            loop {
                self.skip();
                // A head is looked at when its first bytes are there, which shows most nonsense, and when its end may be.
                if !self.input.is_empty() && (seen == 0 || has_empty_line(&self.input, seen)) {
                    match head::take(&mut self.input) {
                        Ok(Some(head)) => return Poll::Ready(Ok(head)),
                        Ok(None) => {}
                        Err(BadHead::Http2) => return Poll::Ready(Err(End::Gone)),
                        Err(BadHead::Refused(status, detail)) => {
                            return Poll::Ready(Err(End::Refused(status, detail)));
                        }
                    }
                }
                seen = self.input.len();
                if seen >= HEAD_BYTES_MAX {
                    // Its end never came: this says so.
                    seen = 0;
                    continue;
                }
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(_) => return Poll::Ready(Err(End::Gone)),
                    Poll::Pending => break,
                }
            }
            is_stopping = is_stopping || stopped.as_mut().poll(cx).is_ready();
            if is_stopping && self.input.is_empty() {
                return Poll::Ready(Err(End::Stopped));
            }
            if let (Some(mut timer), Some(deadline)) = (timer.as_mut().as_pin_mut(), deadline) {
                while timer.as_mut().poll(cx).is_ready() {
                    if Instant::now() >= deadline {
                        return Poll::Ready(Err(End::TooSlow { begun: !self.input.is_empty() }));
                    }
                    timer.as_mut().reset(deadline);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The request of a head, with its body if that is there already.
    fn request(&mut self, head: Head) -> (Form, Request, Rest) {
        let Head { method, uri, version, bytes: head, fields, length, keeps, expects } = head;
        let form = Form { is_head: method == Method::HEAD, version, keeps };
        let (body, rest) = match length {
            Length::Known(len) if len <= self.input.len() as u64 => {
                (Body::Whole(self.input.split_to(len as usize).freeze()), Rest::none())
            }
            length => {
                let (sender, pieces) = mpsc::channel(1);
                let known = match length {
                    Length::Known(len) => Some(len),
                    Length::Chunked => None,
                };
                let rest = Rest::new(length, expects, sender);
                (Body::Coming { pieces, len: known }, rest)
            }
        };
        (form, Request { method, uri, version, head, fields, body }, rest)
    }

    /// The answer; none if the client goes first. The rest of the body is read meanwhile, as fast as it is wanted.
    async fn answered(
        &mut self,
        mut answer: Pin<&mut impl Future<Output = Response<B>>>,
        rest: &mut Rest,
    ) -> Option<Response<B>> {
        if rest.is_awaited {
            let at_once = std::future::poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(response) => Poll::Ready(Some(response)),
                Poll::Pending => Poll::Ready(None),
            });
            // Whoever is refused without a look at the body need not send it.
            if let Some(response) = at_once.await {
                return Some(response);
            }
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
            self.stream.flush().await.ok()?;
            rest.is_awaited = false;
        }
        std::future::poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending => self.poll_rest(rest, cx).map(|()| None),
        })
        .await
    }

    /// Moves the rest of a body to its reader. Ready once the client has gone.
    fn poll_rest(&mut self, rest: &mut Rest, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match rest.give(&mut self.input) {
                // The reader is polled by this very task: it takes what it has before this is asked again.
                Step::Full => return Poll::Pending,
                Step::Over if self.input.len() >= PIPED_MAX => return Poll::Pending,
                Step::Hungry | Step::Over => match ready!(self.poll_fill(cx)) {
                    Ok(1..) => {}
                    Ok(_) | Err(_) => return Poll::Ready(()),
                },
            }
        }
    }

    /// Sends an answer. Whether another request may follow.
    async fn send(&mut self, response: Response<B>, form: Form, rest: &Rest) -> io::Result<bool> {
        let (parts, body) = response.into_parts();
        let (status, headers, body) = (parts.status, parts.headers, body.into_outgoing());
        let closes = headers.get(CONNECTION).is_some_and(|value| value == HeaderValue::from_static("close"));
        let left = rest.left().filter(|left| *left <= SKIP_MAX && !rest.is_awaited);
        let mut keeps = form.keeps && !closes && left.is_some();
        self.skip = left.unwrap_or(0);
        let bodyless =
            status.is_informational() || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        let ending = match &body {
            _ if bodyless => Ending::Bodyless,
            Outgoing::Whole(whole) => Ending::Length(whole.len()),
            Outgoing::Stream(_) if form.version == Version::HTTP_10 => Ending::Close,
            Outgoing::Stream(_) => Ending::Chunks,
        };
        keeps &= ending != Ending::Close;
        self.output.clear();
        render::head(&mut self.output, (status, &headers), form.version, ending, keeps);
        match body {
            _ if bodyless || form.is_head => self.write_output().await?,
            Outgoing::Whole(whole) if whole.len() <= ONE_PIECE_MAX => {
                self.output.extend_from_slice(&whole);
                self.write_output().await?;
            }
            Outgoing::Whole(whole) => {
                self.stream.write_all(&self.output).await?;
                self.stream.write_all(&whole).await?;
            }
            Outgoing::Stream(pieces) => self.send_stream(pieces, ending == Ending::Chunks).await?,
        }
        self.stream.flush().await?;
        self.output.shrink_to(ROOM);
        Ok(keeps)
    }

    async fn write_output(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await
    }

    /// Sends pieces as they come, until they end or the client goes. A body that is not complete ends the connection without
    /// the last chunk.
    async fn send_stream(&mut self, mut pieces: B::Source, in_chunks: bool) -> io::Result<()> {
        loop {
            self.write_output().await?;
            self.stream.flush().await?;
            self.output.clear();
            let first = std::future::poll_fn(|cx| -> Poll<io::Result<_>> {
                if let Poll::Ready(piece) = pieces.poll_next(cx) {
                    return Poll::Ready(piece.map_err(io::Error::other));
                }
                self.poll_rest(&mut Rest::none(), cx).map(|()| Err(io::ErrorKind::UnexpectedEof.into()))
            });
            let Some(first) = first.await? else { break };
            let mut next = Some(first);
            while let Some(piece) = next {
                // An empty chunk would be the last one.
                if !piece.is_empty() {
                    self.append(&piece, in_chunks);
                }
                next = if self.output.len() < ONE_PIECE_MAX { pieces.try_next() } else { None };
            }
        }
        if in_chunks {
            self.output.extend_from_slice(b"0\r\n\r\n");
            self.write_output().await?;
        }
        Ok(())
    }

    fn append(&mut self, piece: &[u8], in_chunks: bool) {
        if in_chunks {
            self.output.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        }
        self.output.extend_from_slice(piece);
        if in_chunks {
            self.output.extend_from_slice(b"\r\n");
        }
    }

    /// Forgets what is left of a body that nobody read.
    fn skip(&mut self) {
        let len = self.input.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        if len > 0 {
            drop(self.input.split_to(len));
            self.skip -= len as u64;
        }
    }

    /// Reads once.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Behind requests that are over the room begins at its front again, where memory is still in the cache.
        if !self.input.try_reclaim(ROOM) && self.input.capacity() - self.input.len() < ROOM_MIN {
            self.input.reserve(ROOM);
        }
        pin!(self.stream.read_buf(&mut *self.input)).poll(cx)
    }
}

impl End {
    /// What the client is told, if it would listen.
    fn refusal(&self, patience: Option<Duration>) -> Option<HttpRefusal> {
        match self {
            Self::Gone | Self::Stopped | Self::TooSlow { begun: false } => None,
            Self::TooSlow { begun: true } => {
                let detail = format!("the headers did not arrive within {:?}", patience.unwrap_or_default());
                Some(HttpRefusal { status: StatusCode::REQUEST_TIMEOUT, detail: detail.into() })
            }
            Self::Refused(status, detail) => Some(HttpRefusal { status: *status, detail: (*detail).into() }),
        }
    }
}

/// Whether a head may end behind the first `seen` bytes.
fn has_empty_line(input: &[u8], seen: usize) -> bool {
    let new = &input[seen.saturating_sub(3)..];
    new.windows(2).any(|two| two == b"\n\n") || new.windows(3).any(|three| three == b"\n\r\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use bytes::Bytes;

    use super::*;

    /// No answer of these tests comes in pieces.
    enum Never {}

    impl BodySource for Never {
        fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
            match *self {}
        }

        fn try_next(&mut self) -> Option<Bytes> {
            match *self {}
        }
    }

    /// A body without a byte.
    struct Empty;

    impl AnswerBody for Empty {
        type Source = Never;

        fn into_outgoing(self) -> Outgoing<Never> {
            Outgoing::Whole(Bytes::new())
        }
    }

    #[tokio::test]
    async fn an_answer_that_stands_back_is_sent_after_all_that_is_ready() {
        for stands_back in [false, true] {
            let (mut client, stream) = tokio::io::duplex(1024);
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            client.shutdown().await.unwrap();
            let (others, sent_after) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
            let answer = |_| {
                let others = others.clone();
                tokio::spawn(async move { others.store(true, Relaxed) });
                std::future::ready(Response::new(Empty))
            };
            // Asked last before an answer is sent.
            let is_stopping = || {
                sent_after.store(others.load(Relaxed), Relaxed);
                false
            };
            let never = std::future::pending();
            let refuse = |_: &HttpRefusal| Response::new(Empty);
            let http1 = Http1::new(stream, None);
            http1.serve(None, never, is_stopping, || stands_back, refuse, answer).await;
            assert_eq!(sent_after.load(Relaxed), stands_back);
        }
    }
}
