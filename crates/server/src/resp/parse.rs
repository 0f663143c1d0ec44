//! Commands out of the bytes of a client.
//!
//! In:    bytes, in whatever pieces they come. Out: one command at a time; or why the bytes are none.
//! Never: keeps more than [`Limits`] allow.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

/// The longest line: a length, or a command that is typed by hand.
const LINE_LEN_MAX: usize = 64 << 10;
/// Shorter arguments are copied: otherwise one of a few bytes would keep the whole piece alive that it came in.
const COPIED_BELOW: usize = 4 << 10;
/// What an argument takes beside its bytes.
const ARGUMENT_COST: usize = 64;
/// The longest line that holds a length: `*` or `$`, a number, and the end of the line.
const LENGTH_LINE_MAX: usize = 32;

/// What one command may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Arguments, the command's name included.
    pub arguments_max: usize,
    /// Bytes of one argument.
    pub argument_len_max: usize,
    /// Bytes of all arguments.
    pub command_len_max: usize,
}

/// Why the bytes are no command. What follows can't be understood either: the connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is no number, or too large.
    ArgumentCount,
    /// The length of an argument is no number, or too large.
    ArgumentLen,
    /// A `$` was expected.
    Expected(u8),
    /// A line without an end.
    LineTooLong,
    /// Quotes that are not closed.
    Quotes,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArgumentCount => f.write_str("Protocol error: invalid multibulk length"),
            Self::ArgumentLen => f.write_str("Protocol error: invalid bulk length"),
            Self::Expected(found) => {
                write!(f, "Protocol error: expected '$', got '{}'", char::from(*found).escape_default())
            }
            Self::LineTooLong => f.write_str("Protocol error: too big inline request"),
            Self::Quotes => f.write_str("Protocol error: unbalanced quotes in request"),
        }
    }
}

/// Reads commands. It remembers where it stands in a command that is not complete.
#[derive(Debug, Default)]
pub struct Parser {
    arguments: Vec<Bytes>,
    /// Arguments that are still to come.
    left: usize,
    /// The length of the argument whose bytes come next.
    next_len: Option<usize>,
    /// Bytes of the arguments so far.
    taken: usize,
}

impl Parser {
    /// Whether a part of a command has come, and the rest has not.
    pub fn is_inside(&self, input: &BytesMut) -> bool {
        self.left > 0 || !input.is_empty()
    }

    /// Bytes of a command that is not complete, beside those that still stand in the input.
    pub fn held(&self) -> usize {
        self.taken + self.arguments.len() * ARGUMENT_COST
    }

    /// The next command, and takes its bytes out of `input`; `None` if it is not complete yet. An empty list is an empty
    /// line, which means nothing.
    pub fn next(
        &mut self,
        input: &mut BytesMut,
        limits: Limits,
    ) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        if self.left == 0 {
            match input.first() {
                None => return Ok(None),
                Some(b'*') => match number(input, ProtocolError::ArgumentCount)? {
                    None => return Ok(None),
                    // Redis takes a list of nothing, or of less than that, as nothing.
                    Some(count) if count <= 0 => return Ok(Some(Vec::new())),
                    Some(count) => self.begin(count, limits)?,
                },
                Some(_) => return line(input, limits),
            }
        }
        while self.left > 0 {
            if !self.argument(input, limits)? {
                return Ok(None);
            }
        }
        self.taken = 0;
        Ok(Some(std::mem::take(&mut self.arguments)))
    }

    fn begin(&mut self, count: i64, limits: Limits) -> Result<(), ProtocolError> {
        let count = usize::try_from(count).ok().filter(|count| *count <= limits.arguments_max);
        self.left = count.ok_or(ProtocolError::ArgumentCount)?;
        // A stranger who promises many arguments gets room for a few.
        self.arguments.reserve(self.left.min(16));
        Ok(())
    }

    /// Takes one argument, if it has come whole.
    fn argument(&mut self, input: &mut BytesMut, limits: Limits) -> Result<bool, ProtocolError> {
        let len = match self.next_len {
            Some(len) => len,
            None => {
                match input.first() {
                    None => return Ok(false),
                    Some(b'$') => {}
                    Some(other) => return Err(ProtocolError::Expected(*other)),
                }
                let Some(len) = number(input, ProtocolError::ArgumentLen)? else { return Ok(false) };
                let len = usize::try_from(len).ok().filter(|len| {
                    *len <= limits.argument_len_max && self.taken + len <= limits.command_len_max
                });
                *self.next_len.insert(len.ok_or(ProtocolError::ArgumentLen)?)
            }
        };
        if input.len() < len + 2 {
            return Ok(false);
        }
        self.arguments.push(match len {
            0..COPIED_BELOW => Bytes::copy_from_slice(&input[..len]),
            _ => input.split_to(len).freeze(),
        });
        if len < COPIED_BELOW {
            input.advance(len);
        }
        // Redis does not look at the two bytes behind an argument either.
        input.advance(2);
        self.taken += len;
        self.next_len = None;
        self.left -= 1;
        Ok(true)
    }
}

/// The number in a line such as `*3` or `$12`, once the line is complete.
fn number(input: &mut BytesMut, wrong: ProtocolError) -> Result<Option<i64>, ProtocolError> {
    let Some(end) = input.iter().take(LENGTH_LINE_MAX).position(|byte| *byte == b'\r') else {
        return if input.len() < LENGTH_LINE_MAX { Ok(None) } else { Err(wrong) };
    };
    if input.len() < end + 2 {
        return Ok(None);
    }
    let number = std::str::from_utf8(&input[1..end]).ok().and_then(|digits| digits.parse().ok());
    input.advance(end + 2);
    number.map(Some).ok_or(wrong)
}

/// A command that was typed as a line: words, some of them in quotes.
fn line(input: &mut BytesMut, limits: Limits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let longest = LINE_LEN_MAX.min(limits.command_len_max);
    let Some(end) = input.iter().take(longest).position(|byte| *byte == b'\n') else {
        return if input.len() < longest { Ok(None) } else { Err(ProtocolError::LineTooLong) };
    };
    let line = input.split_to(end + 1).freeze();
    let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
    let words = words(line).ok_or(ProtocolError::Quotes)?;
    let fits = words.len() <= limits.arguments_max;
    if fits { Ok(Some(words)) } else { Err(ProtocolError::ArgumentCount) }
}

/// The words of a line; `None` if quotes are not closed, or something stands right behind them.
fn words(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while let Some(first) = rest.first() {
        let word;
        (word, rest) = match first {
            b'"' | b'\'' => quoted(&rest[1..], *first)?,
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                (rest[..end].to_vec(), &rest[end..])
            }
        };
        words.push(word.into());
        rest = rest.trim_ascii_start();
    }
    Some(words)
}

/// A word behind its first quote, and what follows its last one.
fn quoted(text: &[u8], quote: u8) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            byte if *byte == quote => {
                let rest = &text[at + 1..];
                let apart = rest.first().is_none_or(u8::is_ascii_whitespace);
                return apart.then_some((word, rest));
            }
            b'\\' => match *bytes.next()?.1 {
                b'n' if quote == b'"' => word.push(b'\n'),
                b'r' if quote == b'"' => word.push(b'\r'),
                b't' if quote == b'"' => word.push(b'\t'),
                other => word.push(other),
            },
            byte => word.push(*byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use leasehold_lab::mutate::{corpus, mutated};
    use leasehold_lab::random::Random;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { arguments_max: 8, argument_len_max: 64, command_len_max: 200 };

    /// All commands of these bytes, which come in pieces of this size.
    fn parsed(bytes: &[u8], piece: usize) -> Result<Vec<Vec<Bytes>>, ProtocolError> {
        let (mut parser, mut input, mut commands) = (Parser::default(), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(piece.max(1)) {
            input.extend_from_slice(piece);
            while let Some(command) = parser.next(&mut input, LIMITS)? {
                commands.push(command);
            }
        }
        Ok(commands)
    }

    fn encoded(arguments: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    #[test]
    fn lines_are_commands_too() {
        let of = |text: &str| parsed(text.as_bytes(), 3).map(|commands| commands.concat());
        assert_eq!(of("SET k  v\r\n").unwrap(), ["SET", "k", "v"]);
        assert_eq!(of("SET \"a b\\n\" 'c\\'d'\n").unwrap(), ["SET", "a b\n", "c'd"]);
        assert_eq!(parsed(b"\r\n\r\n", 1).unwrap(), [Vec::<Bytes>::new(), Vec::new()]);
        assert_eq!(of("SET \"a\r\n"), Err(ProtocolError::Quotes));
        assert_eq!(of("SET \"a\"b\r\n"), Err(ProtocolError::Quotes));
        assert_eq!(of(&"x".repeat(300)), Err(ProtocolError::LineTooLong));
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_comes() {
        let of = |text: &str| parsed(text.as_bytes(), 1).unwrap_err();
        assert_eq!(of("*9\r\n"), ProtocolError::ArgumentCount);
        assert_eq!(of("*9223372036854775808\r\n"), ProtocolError::ArgumentCount);
        assert_eq!(of("*x\r\n"), ProtocolError::ArgumentCount);
        assert_eq!(of(&"*1".repeat(40)), ProtocolError::ArgumentCount);
        assert_eq!(of("*1\r\n$65\r\n"), ProtocolError::ArgumentLen);
        assert_eq!(of("*1\r\n$-1\r\n"), ProtocolError::ArgumentLen);
        assert_eq!(of("*1\r\n:1\r\n"), ProtocolError::Expected(b':'));
        let four = format!("*5\r\n{}$64\r\n", format!("$64\r\n{}\r\n", "x".repeat(64)).repeat(3));
        assert_eq!(of(&four), ProtocolError::ArgumentLen);
    }

    /// One byte a packet: each argument has room of its own, and what it takes is counted.
    #[test]
    fn small_arguments_keep_no_piece_alive() {
        let limits = Limits { arguments_max: 1024, ..LIMITS };
        let (mut parser, mut input) = (Parser::default(), BytesMut::new());
        input.extend_from_slice(b"*1000\r\n");
        for _ in 0..100 {
            let mut piece = BytesMut::with_capacity(4096);
            piece.extend_from_slice(b"$1\r\nx\r\n");
            input.unsplit(piece);
            assert_eq!(parser.next(&mut input, limits), Ok(None));
            assert!(input.try_reclaim(8), "an argument keeps the piece that it came in");
        }
        assert!(parser.held() >= 100 * ARGUMENT_COST);
    }

    /// What a stranger's bytes mean does not depend on how they are cut, and takes no more room than the limits allow.
    #[test]
    fn mutated_commands_are_commands_or_errors_however_they_are_cut() {
        let limits = Limits { arguments_max: 16, argument_len_max: 300, command_len_max: 1000 };
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/corpus/resp");
        let corpus = corpus(Path::new(path)).unwrap();
        let (mut random, mut understood) = (Random::new(11), 0);
        for _ in 0..20_000 {
            let bytes = mutated(&corpus, &mut random);
            let read = |piece: usize| {
                let (mut parser, mut input, mut commands) = (Parser::default(), BytesMut::new(), Vec::new());
                for piece in bytes.chunks(piece) {
                    input.extend_from_slice(piece);
                    while let Some(command) = match parser.next(&mut input, limits) {
                        Ok(command) => command,
                        Err(error) => return (commands, Some(error)),
                    } {
                        assert!(command.len() <= limits.arguments_max);
                        assert!(command.iter().map(Bytes::len).sum::<usize>() <= limits.command_len_max);
                        commands.push(command);
                    }
                    assert!(parser.held() <= limits.command_len_max + limits.arguments_max * ARGUMENT_COST);
                }
                (commands, None)
            };
            let whole = read(bytes.len().max(1));
            assert_eq!(whole, read(1 + random.below(40) as usize), "{}", bytes.escape_ascii());
            understood += whole.0.len();
        }
        assert!(understood > 1000, "the corpus is not even understood as it is");
    }

    proptest! {
        #[test]
        fn commands_come_out_as_they_went_in_however_they_are_cut(
            commands in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..8), 0..5),
            piece in 1_usize..40,
        ) {
            let bytes: Vec<u8> = commands.iter().flat_map(|command| encoded(command)).collect();
            prop_assert_eq!(parsed(&bytes, piece).unwrap(), commands);
        }

        #[test]
        fn rubbish_means_the_same_however_it_is_cut(
            bytes in prop::collection::vec(
                prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'"'), any::<u8>()], 0..300),
            piece in 1_usize..40,
        ) {
            prop_assert_eq!(parsed(&bytes, piece), parsed(&bytes, 1));
        }
    }
}
