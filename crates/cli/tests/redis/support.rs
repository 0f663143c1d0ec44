//! A client that speaks RESP byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::{PATIENCE, Server};

/// Flags of a server with a port for Redis clients.
pub const REDIS: [&str; 2] = ["--redis-listen", "127.0.0.1:0"];

/// Where a server listens for Redis clients.
pub fn port_of(server: &Server) -> SocketAddr {
    *server.other_addrs.last().unwrap()
}

/// A connection.
pub struct Resp(BufReader<TcpStream>);

impl Resp {
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn to(server: &Server) -> Self {
        Self::connect(port_of(server))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Sends a command whose arguments are the words of a line, and reads the reply.
    pub fn ask(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask_with(&words)
    }

    pub fn ask_with(&mut self, words: &[&[u8]]) -> String {
        self.send(&encoded(words));
        self.reply().unwrap_or_else(|| panic!("the connection ended at {words:?}"))
    }

    /// The next reply in one line: strings in quotes, lists in brackets. `None`: the connection ended.
    pub fn reply(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        let (kind, text) = line.trim_end().split_at(1);
        Some(match kind {
            "$" if text == "-1" => "nil".into(),
            "_" => "nil".into(),
            "$" => {
                let mut bytes = vec![0; text.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len() - 2]))
            }
            "*" | "%" => {
                let count = text.parse::<usize>().unwrap() * if kind == "%" { 2 } else { 1 };
                let items: Vec<String> = (0..count).map(|_| self.reply().unwrap()).collect();
                format!("{kind}[{}]", items.join(", "))
            }
            _ => format!("{kind}{text}"),
        })
    }

    /// Reads until the server closes the connection: true, since a read that waits for too long fails.
    pub fn ends(mut self) -> bool {
        while self.reply().is_some() {}
        true
    }
}

pub fn encoded(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
