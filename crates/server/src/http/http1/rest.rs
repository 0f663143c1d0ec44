//! What of a request's body is still to come when its head is there.
//!
//! In:    the bytes of a connection. Out: pieces of the body, handed to whoever reads it; where the body ends.
//! Never: reads ahead of its reader by more than a piece, or past the end of the body.

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::BodyError;
use super::head::Length;

/// The longest line between chunks: a size, and extensions that nobody uses.
const LINE_MAX: usize = 256;
/// Lines behind the last chunk.
const TRAILERS_MAX: u8 = 32;
const UNREADABLE: BodyError = "a chunk does not begin with its size in hexadecimal digits";

/// A body on its way.
#[derive(Debug)]
pub(super) struct Rest {
    place: BodyPosition,
    /// Whether the client waits for a word before it sends any of it.
    pub(super) is_awaited: bool,
    /// Who reads it; nobody any more, or all of it was given.
    reader: Option<mpsc::Sender<Result<Bytes, BodyError>>>,
}

/// Where in the body the next byte of the connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyPosition {
    /// This many bytes before its end.
    Plain(u64),
    /// Before a chunk's size.
    Size,
    /// This many bytes before the end of a chunk.
    Chunk(u64),
    /// Before the line's end behind a chunk.
    ChunkEnd,
    /// Behind the last chunk, where this many more lines may stand.
    Trailers(u8),
    /// Behind it.
    Done,
    /// Nobody knows: it was no body.
    Lost,
}

/// What can be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before more bytes have come.
    Hungry,
    /// Nothing before the reader has taken what it was given.
    Full,
    /// Nothing: all was given, or nobody wants it.
    Over,
}

impl Rest {
    /// Nothing is to come.
    pub(super) fn none() -> Self {
        Self { place: BodyPosition::Done, is_awaited: false, reader: None }
    }

    /// A body of this length, for this reader.
    pub(super) fn new(
        length: Length,
        is_awaited: bool,
        reader: mpsc::Sender<Result<Bytes, BodyError>>,
    ) -> Self {
        let place = match length {
            Length::Known(left) => BodyPosition::Plain(left),
            Length::Chunked => BodyPosition::Size,
        };
        Self { place, is_awaited, reader: Some(reader) }
    }

    /// How many bytes have to be thrown away before the next request begins, where that can be told.
    pub(super) fn left(&self) -> Option<u64> {
        match self.place {
            BodyPosition::Plain(left) => Some(left),
            BodyPosition::Done => Some(0),
            _ => None,
        }
    }

    /// Gives the reader what is there.
    pub(super) fn give(&mut self, input: &mut BytesMut) -> Step {
        while let Some(reader) = self.reader.as_ref().filter(|reader| !reader.is_closed()) {
            if reader.capacity() == 0 {
                return Step::Full;
            }
            let piece = match self.place.next(input) {
                Ok(None) if self.place == BodyPosition::Done => break,
                Ok(None) => return Step::Hungry,
                Ok(Some(piece)) => Ok(piece),
                Err(broken) => {
                    self.place = BodyPosition::Lost;
                    Err(broken)
                }
            };
            let lost = piece.is_err();
            if matches!(reader.try_send(piece), Err(TrySendError::Closed(_))) || lost {
                break;
            }
        }
        self.reader = None;
        Step::Over
    }
}

impl BodyPosition {
    /// The next piece of the body. None: it is over, or more bytes are needed.
    fn next(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, BodyError> {
        loop {
            match *self {
                Self::Plain(0) | Self::Done => {
                    *self = Self::Done;
                    return Ok(None);
                }
                Self::Lost => return Err(UNREADABLE),
                Self::Plain(left) | Self::Chunk(left) if left > 0 => {
                    let len = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    if len == 0 {
                        return Ok(None);
                    }
                    let left = left - len as u64;
                    *self =
                        if matches!(self, Self::Plain(_)) { Self::Plain(left) } else { Self::Chunk(left) };
                    return Ok(Some(input.split_to(len).freeze()));
                }
                Self::Plain(_) | Self::Chunk(_) => *self = Self::ChunkEnd,
                Self::ChunkEnd => match line(input)? {
                    None => return Ok(None),
                    Some(line) if line.is_empty() => *self = Self::Size,
                    Some(_) => return Err("a chunk is longer than its size"),
                },
                Self::Size => match line(input)? {
                    None => return Ok(None),
                    Some(line) => {
                        *self = match size(&line)? {
                            0 => Self::Trailers(TRAILERS_MAX),
                            size => Self::Chunk(size),
                        }
                    }
                },
                Self::Trailers(more) => match line(input)? {
                    None => return Ok(None),
                    Some(line) if line.is_empty() => *self = Self::Done,
                    Some(_) if more == 0 => return Err("there are too many lines after the last chunk"),
                    Some(line) if !is_header(&line) => {
                        return Err("a line after the last chunk is not a header");
                    }
                    Some(_) => *self = Self::Trailers(more - 1),
                },
            }
        }
    }
}

/// The next line, without its end.
fn line(input: &mut BytesMut) -> Result<Option<BytesMut>, BodyError> {
    match input.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
        Some(at) => {
            let mut line = input.split_to(at + 1);
            // Whoever ends lines in another way would end chunks elsewhere, too.
            if at == 0 || line[at - 1] != b'\r' {
                return Err(UNREADABLE);
            }
            line.truncate(at - 1);
            Ok(Some(line))
        }
        None if input.len() >= LINE_MAX => Err(UNREADABLE),
        None => Ok(None),
    }
}

/// Whether a line behind the last chunk is a header. What another reader could end elsewhere, or take for a request, is not.
fn is_header(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
    let (name, value) = line.split_at(colon);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(is_token) && !value.iter().any(is_bad_control)
}

fn is_bad_control(byte: &u8) -> bool {
    byte.is_ascii_control() && *byte != b'\t'
}

/// The size of a chunk, in front of extensions. Spaces and tabs may stand before an extension (RFC 9112, 7.1.1); every
/// other control character is refused, because another reader could end the line there.
fn size(line: &[u8]) -> Result<u64, BodyError> {
    if line.iter().any(is_bad_control) {
        return Err(UNREADABLE);
    }
    let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = &size[..size.iter().rposition(|byte| !b" \t".contains(byte)).map_or(0, |last| last + 1)];
    let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_hexdigit));
    text.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or(UNREADABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader gets of these bytes, however they are cut; and what is left of them.
    fn read(length: Length, bytes: &[u8], cut: usize) -> (Result<Vec<u8>, BodyError>, Vec<u8>) {
        let (sender, mut pieces) = mpsc::channel(1);
        let (mut rest, mut input, mut body) = (Rest::new(length, false, sender), BytesMut::new(), Vec::new());
        let mut take = |body: &mut Vec<u8>| match pieces.try_recv() {
            Ok(Ok(piece)) => {
                body.extend(piece);
                None
            }
            Ok(Err(broken)) => Some(broken),
            Err(_) => None,
        };
        for piece in bytes.chunks(cut) {
            input.extend_from_slice(piece);
            while rest.give(&mut input) == Step::Full {
                if let Some(broken) = take(&mut body) {
                    return (Err(broken), input.to_vec());
                }
            }
            if let Some(broken) = take(&mut body) {
                return (Err(broken), input.to_vec());
            }
        }
        assert_eq!(rest.left(), Some(0), "{:?}", rest.place);
        (Ok(body), input.to_vec())
    }

    #[test]
    fn a_body_ends_where_it_says_however_it_is_cut() {
        let chunks = b"4\r\nabcd\r\n0A;why=not\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET";
        for cut in 1..chunks.len() + 1 {
            let (body, left) = read(Length::Chunked, chunks, cut);
            assert_eq!((body.unwrap().as_slice(), left.as_slice()), (&b"abcd0123456789"[..], &b"GET"[..]));
            let (body, left) = read(Length::Known(5), b"hello, world", cut);
            assert_eq!((body.unwrap().as_slice(), left.as_slice()), (&b"hello"[..], &b", world"[..]));
        }
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for bad in [
            "zz\r\n{}",
            "-2\r\n{}",
            "\r\n{}",
            " 2\r\n{}",
            "0x2\r\n{}",
            "2\n{}",
            "2\r\r\n{}",
            "2\u{c}\r\n{}",
            "2;a\rb\r\n{}",
            "2\r\n{}x\r\n",
            "fffffffffffffffff\r\n{}",
        ] {
            assert!(read(Length::Chunked, bad.as_bytes(), 3).0.is_err(), "{bad:?}");
        }
        assert!(read(Length::Chunked, &[b'1'; 300], 7).0.is_err());
        for bad in [
            "0\r\nA: b\rc\r\n\r\n",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
            "0\r\n: b\r\n\r\n",
            "0\r\nA: b\n\r\n",
            "0\r\n a: b\r\n\r\n",
        ] {
            assert!(read(Length::Chunked, bad.as_bytes(), 3).0.is_err(), "{bad:?}");
        }
        let trailers = format!("0\r\n{}\r\n", "A: b\r\n".repeat(40));
        assert!(read(Length::Chunked, trailers.as_bytes(), 7).0.is_err());
    }

    #[test]
    fn a_reader_that_has_gone_is_given_nothing() {
        let (sender, pieces) = mpsc::channel(1);
        let mut rest = Rest::new(Length::Known(5), false, sender);
        drop(pieces);
        assert_eq!(rest.give(&mut BytesMut::from("hello")), Step::Over);
        assert_eq!(rest.left(), Some(5));
    }
}
