//! The bare responder: HTTP and JSON of a claim cycle with no log and no table behind them.
//!
//! In:    the requests of the `cycle` scenario.
//! Out:   answers of the real size. Its rate is the ceiling the server is compared with.
//! Never: keeps state, checks anything, or outlives the bench that started it.

use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};

use crate::output;

/// The same number of workers as the server uses on two cores.
const WORKERS: usize = 2;

/// The fields of a claim, parsed as the server has to.
#[derive(Deserialize)]
struct Claim<'a> {
    #[serde(borrow)]
    resource: std::borrow::Cow<'a, str>,
    ttl: f64,
}

/// The fields of an update.
#[derive(Deserialize)]
struct Update<'a> {
    #[serde(borrow, default)]
    status: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    ttl: Option<f64>,
}

/// Serves until standard input closes.
pub(crate) fn run(listen: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("listening on {listen}"))?;
        output::print(&format!("http://{}\n", listener.local_addr()?));
        end_with_standard_input();
        loop {
            let (stream, _) = listener.accept().await.context("accepting a connection")?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream));
        }
    })
}

/// Ends the process when standard input closes, which the death of the bench does.
fn end_with_standard_input() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

async fn serve(stream: TcpStream) {
    // An error here is the client closing the connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Ok(plain(StatusCode::BAD_REQUEST));
    };
    Ok(match parts.method {
        Method::POST => match serde_json::from_slice::<Claim<'_>>(&body) {
            Ok(claim) => created(&parts.headers, &claim),
            Err(_) => plain(StatusCode::BAD_REQUEST),
        },
        Method::PATCH => match serde_json::from_slice::<Update<'_>>(&body) {
            Ok(update) if update.ttl.is_some() => plain(StatusCode::OK),
            Ok(update) if update.status.is_some() => plain(StatusCode::NO_CONTENT),
            _ => plain(StatusCode::BAD_REQUEST),
        },
        _ => plain(StatusCode::OK),
    })
}

fn created(headers: &hyper::HeaderMap, claim: &Claim<'_>) -> Response<Full<Bytes>> {
    static TOKEN: AtomicU64 = AtomicU64::new(0);
    let token = TOKEN.fetch_add(1, Ordering::Relaxed) + 1;
    let host = headers.get(hyper::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let url = format!("http://{host}/v1/claims/{token:032x}/");
    let resource = &claim.resource;
    let ttl = claim.ttl;
    let body = format!(
        "{{\"url\":\"{url}\",\"resource\":\"{resource}\",\"status\":\"active\",\"status_history\":[\
         {{\"status\":\"waiting\",\"timestamp\":\"2026-01-02T03:04:05.678901Z\"}},\
         {{\"status\":\"active\",\"timestamp\":\"2026-01-02T03:04:05.678901Z\"}}],\
         \"created\":\"2026-01-02T03:04:05.678901Z\",\"ttl\":{ttl:?},\"active_duration\":0.0,\
         \"waiting_duration\":0.0,\"user_data\":null,\"token\":{token},\"owner\":null,\"position\":null,\
         \"expires\":\"2026-01-02T03:04:35.678901Z\"}}"
    );
    let response = Response::builder()
        .status(StatusCode::CREATED)
        .header(CONTENT_TYPE, "application/json")
        .header(LOCATION, url)
        .body(Full::new(Bytes::from(body)));
    response.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR))
}

fn plain(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = status;
    response
}
