//! HTTP/2 on one connection, spoken by hyper.
//!
//! In:    a TLS stream, and the function that answers requests. Out: requests to that function, its answers back.
//! Never: keeps an answer for a client that does not take it: a request whose client opens no window for the write timeout is
//!        reset. Never keeps a connection without requests for longer than HTTP/1.1 does.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::message::Response;
use crate::message::body::{RequestBody, stall};
use crate::message::request::{self, Head};

/// Bytes of headers that a request over HTTP/2 may have.
const HEADER_LIST_MAX: u32 = 64 << 10;
/// Requests that one HTTP/2 connection may have open at a time.
const STREAMS_MAX: u32 = 100;
/// How often an HTTP/2 connection is asked whether its client still lives.
const PING_EVERY: Duration = Duration::from_secs(15);
/// What a client may send of one request's body before somebody reads it ...
const STREAM_WINDOW: u32 = 64 << 10;
/// ... and of all on one connection.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// What hyper may take of one answer ahead of its client.
const SEND_BUFFER_MAX: usize = 32 << 10;

/// Serves the requests of a connection until it ends, it is idle for too long, or it has to end and
/// all are answered.
pub async fn serve<S, F>(
    stream: S,
    patience: Duration,
    write_timeout: Duration,
    over: impl Future<Output = ()>,
    answer: impl Fn(request::Request) -> F,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let requests = Requests { open: watch::Sender::new(0), write_timeout };
    let idle = idle(requests.open.subscribe(), patience);
    let service = service_fn(move |mut request: Request<Incoming>| {
        name_host(&mut request);
        let (head, body) = request.into_parts();
        let headers = head.headers.iter().collect();
        let head = Head { method: head.method, uri: head.uri, version: head.version, headers };
        let request = request::Request::new(head, RequestBody::from(body));
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut serving = std::pin::pin!(
        http2::Builder::new(requests)
            .timer(TokioTimer::new())
            .max_header_list_size(HEADER_LIST_MAX)
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER_MAX)
            .keep_alive_interval(Some(PING_EVERY))
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        ended = &mut serving => ended,
        () = over => {
            serving.as_mut().graceful_shutdown();
            tokio::time::timeout(write_timeout, serving).await.unwrap_or(Ok(()))
        }
        () = idle => {
            serving.as_mut().graceful_shutdown();
            // What is still owed then is owed to a client that does not read.
            tokio::time::timeout(write_timeout, serving).await.unwrap_or(Ok(()))
        }
    }
}

/// HTTP/2 names the host in a place of its own: from here on it is a header, as it was before.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().map(hyper::http::uri::Authority::as_str);
    if let Some(Ok(host)) = authority.map(HeaderValue::from_str)
        && !request.headers().contains_key(HOST)
    {
        request.headers_mut().insert(HOST, host);
    }
}

/// Returns once there was no request for as long as `patience`.
async fn idle(mut open: watch::Receiver<usize>, patience: Duration) {
    loop {
        if open.wait_for(|open| *open == 0).await.is_err() {
            return std::future::pending().await;
        }
        // Every change counts, also one that is over before this looks.
        if tokio::time::timeout(patience, open.changed()).await.is_err() {
            return;
        }
    }
}

/// The requests of a connection, each a task of its own.
#[derive(Clone)]
struct Requests {
    open: watch::Sender<usize>,
    write_timeout: Duration,
}

impl<F> Executor<F> for Requests
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, request: F) {
        self.open.send_modify(|open| *open += 1);
        let (open, timeout) = (Closing(self.open.clone()), self.write_timeout);
        tokio::spawn(async move {
            Watched { request: Box::pin(request), timeout, stalled: None }.await;
            drop(open);
        });
    }
}

/// Counts a request off.
struct Closing(watch::Sender<usize>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// A request that ends when its client takes nothing of the answer. When hyper's future is dropped, the stream is reset.
struct Watched<F> {
    request: Pin<Box<F>>,
    timeout: Duration,
    /// Runs while bytes of the answer wait for the client to open its window.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        stall::forget();
        if self.request.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match stall::noted() {
            Some(true) => self.stalled = Some(Box::pin(tokio::time::sleep(self.timeout))),
            Some(false) => self.stalled = None,
            None => {}
        }
        let Some(timer) = &mut self.stalled else { return Poll::Pending };
        ready!(timer.as_mut().poll(cx));
        tracing::debug!(timeout = ?self.timeout, "a client takes nothing of its answer: its request ends");
        Poll::Ready(())
    }
}
