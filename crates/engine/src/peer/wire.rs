//! Frames on a stream between two nodes: a length, then that number of bytes.
//!
//! In:    values to send, bytes that came. Out: bytes, values.
//! Never: reserves memory for bytes that have not come.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest frame: a few entries of the largest kind.
pub(super) const FRAME_MAX: usize = 64 << 20;
/// Bytes of a file that are read, sent and written at a time.
pub(super) const PIECE_LEN: usize = 256 << 10;

/// Any stream: plain or TLS.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A stream whose kind does not matter, read through a buffer: a frame and its length come in one piece.
pub(super) type Stream = Box<dyn Duplex>;

/// A value as a frame.
pub(super) fn frame(value: &impl Serialize) -> io::Result<Vec<u8>> {
    frame_of(|head| postcard::to_extend(value, head).map_err(io::Error::other))
}

/// What is put behind the frame's head, as a frame.
pub(super) fn frame_of(put: impl FnOnce(Vec<u8>) -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut bytes = put(vec![0; 4])?;
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
    let bytes = receive_bytes(stream, max).await?;
    postcard::from_bytes(&bytes).map_err(|error| invalid(error.to_string()))
}

/// Receives a frame's bytes, at most `max`.
pub(super) async fn receive_bytes(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    max: usize,
) -> io::Result<Vec<u8>> {
    let len = stream.read_u32_le().await? as usize;
    if len > max {
        return Err(invalid(format!(
            "a message of {len} bytes was announced, and at most {max} are allowed"
        )));
    }
    let mut bytes = Vec::with_capacity(len.min(64 << 10));
    stream.take(len as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::{ClaimId, Command, NewClaim, OnBusy};
    use leasehold_lab::mutate::mutated;
    use leasehold_lab::random::Random;

    use super::super::{Ask, PeerAnswer};
    use super::*;
    use crate::entry::{Origin, Parcel};

    /// Even a node that knows the secret may be broken: whatever comes is an error or a message, never a panic, and
    /// a length that is not followed by so many bytes reserves none.
    #[tokio::test]
    async fn mutated_frames_are_messages_or_errors() {
        let claim = NewClaim::new(ClaimId::from_u128(7), "r", "o", Some(5_000_000), OnBusy::Queue);
        let commands = Arc::new(vec![Command::Claim(claim), Command::Tick]);
        let parcel = Parcel { origin: Some(Origin { node: 1, run: 2, number: 3 }), commands };
        let join = Ask::Join { id: 4, run: 5, address: "127.0.0.1:4090".into() };
        let asks = [Ask::Forward(parcel), join, Ask::Status { digest: true }, Ask::Barrier];
        let mut corpus: Vec<Vec<u8>> = asks.iter().map(|ask| frame(ask).unwrap()).collect();
        corpus.push(frame(&PeerAnswer::Barrier { index: 9, now_us: 77 }).unwrap());
        corpus.push(frame(&PeerAnswer::Rejected("no".into())).unwrap());
        let mut random = Random::new(9);
        let mut understood = 0;
        for _ in 0..20_000 {
            let bytes = mutated(&corpus, &mut random);
            understood += u64::from(receive::<Ask>(&mut bytes.as_slice(), FRAME_MAX).await.is_ok());
            receive::<PeerAnswer>(&mut bytes.as_slice(), FRAME_MAX).await.ok();
            // Behind a length that is right, the bytes themselves reach the decoder.
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend_from_slice(&bytes);
            receive::<Ask>(&mut framed.as_slice(), FRAME_MAX).await.ok();
        }
        assert!(understood > 0, "the corpus is not even understood as it is");
    }
}
