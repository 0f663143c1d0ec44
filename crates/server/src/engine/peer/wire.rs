//! Frames on a stream between two nodes: a length, then so many bytes.
//!
//! In:    values to send, bytes that came. Out: bytes, values.
//! Never: reserves memory for bytes that have not come.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest frame: a few entries of the largest kind.
pub(super) const FRAME_MAX: usize = 64 << 20;

/// Any stream: plain or TLS.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A stream whose kind does not matter.
pub(super) type Stream = Box<dyn Duplex>;

/// A value as a frame.
pub(super) fn frame(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(value, vec![0; 4]).map_err(io::Error::other)?;
    let len = bytes.len() - 4;
    if len > FRAME_MAX {
        return Err(io::Error::other(format!("a message of {len} bytes is too long to send")));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(bytes)
}

/// Sends one value.
pub(super) async fn send(
    stream: &mut (impl AsyncWrite + Unpin + ?Sized),
    value: &impl Serialize,
) -> io::Result<()> {
    stream.write_all(&frame(value)?).await?;
    stream.flush().await
}

/// Receives one value of at most `max` bytes.
pub(super) async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    max: usize,
) -> io::Result<T> {
    let len = stream.read_u32_le().await? as usize;
    if len > max {
        return Err(invalid(format!("a message of {len} bytes; at most {max} are taken")));
    }
    let mut bytes = Vec::with_capacity(len.min(64 << 10));
    stream.take(len as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|error| invalid(error.to_string()))
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
