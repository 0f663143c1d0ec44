//! Replies, as RESP2 and RESP3 write them.
//!
//! In:    a reply, and which version the client speaks. Out: bytes.
//! Never: lets a line of an error end early: control characters in it become spaces.

/// The version of the protocol that a client speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// What every client starts with.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// What a command is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A word such as `OK`.
    Simple(&'static str),
    /// An error: a code in capital letters, and what is wrong.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Nil,
    /// A list.
    Array(Vec<Self>),
    /// Names and values; a list of both in RESP2.
    Map(Vec<(&'static str, Self)>),
}

impl Reply {
    /// `OK`.
    pub const OK: Self = Self::Simple("OK");

    /// Appends the bytes of the reply.
    pub fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => line(out, b'+', text.as_bytes()),
            Self::Error(text) => {
                let text: Vec<u8> =
                    text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }).collect();
                line(out, b'-', &text);
            }
            Self::Integer(number) => line(out, b':', number.to_string().as_bytes()),
            Self::Bulk(bytes) => {
                line(out, b'$', bytes.len().to_string().as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil => match protocol {
                Protocol::Resp2 => out.extend_from_slice(b"$-1\r\n"),
                Protocol::Resp3 => out.extend_from_slice(b"_\r\n"),
            },
            Self::Array(items) => {
                line(out, b'*', items.len().to_string().as_bytes());
                items.iter().for_each(|item| item.write(protocol, out));
            }
            Self::Map(entries) => {
                match protocol {
                    Protocol::Resp2 => line(out, b'*', (2 * entries.len()).to_string().as_bytes()),
                    Protocol::Resp3 => line(out, b'%', entries.len().to_string().as_bytes()),
                }
                for (name, value) in entries {
                    Self::Bulk(name.as_bytes().to_vec()).write(protocol, out);
                    value.write(protocol, out);
                }
            }
        }
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, protocol: Protocol) -> String {
        let mut out = Vec::new();
        reply.write(protocol, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn both_versions_are_written_as_redis_writes_them() {
        let all = Reply::Array(vec![
            Reply::OK,
            Reply::Error("ERR a\r\n-b".into()),
            Reply::Integer(-2),
            Reply::Bulk(b"x\r\ny".to_vec()),
            Reply::Nil,
            Reply::Map(vec![("proto", Reply::Integer(3))]),
        ]);
        let two = "*6\r\n+OK\r\n-ERR a  -b\r\n:-2\r\n$4\r\nx\r\ny\r\n$-1\r\n*2\r\n$5\r\nproto\r\n:3\r\n";
        let three = "*6\r\n+OK\r\n-ERR a  -b\r\n:-2\r\n$4\r\nx\r\ny\r\n_\r\n%1\r\n$5\r\nproto\r\n:3\r\n";
        assert_eq!(written(&all, Protocol::Resp2), two);
        assert_eq!(written(&all, Protocol::Resp3), three);
    }
}
