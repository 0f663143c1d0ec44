//! Server-sent events, out of the bytes of a response.
//!
//! In:    pieces of a body, cut anywhere. Out: events, each with its id.
//! Never: keeps more than one event that is not complete yet, and never an endless one.

/// Largest event that is read; those of the service have some hundred bytes.
const EVENT_LEN_MAX: usize = 1 << 20;

/// One event. A heartbeat has an id and no kind.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) data: String,
}

/// What has come and is not an event yet.
#[derive(Default)]
pub(super) struct Reader {
    bytes: Vec<u8>,
}

impl Reader {
    /// The events that are complete with this piece; an error if the stream is not one of this service.
    pub(super) fn read(&mut self, piece: &[u8]) -> Result<Vec<Event>, String> {
        self.bytes.extend_from_slice(piece);
        let mut events = Vec::new();
        while let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
            let text: Vec<u8> = self.bytes.drain(..end + 2).collect();
            events.push(parse(&String::from_utf8_lossy(&text)));
        }
        if self.bytes.len() > EVENT_LEN_MAX {
            return Err("the answer is not a stream of events".into());
        }
        Ok(events)
    }
}

fn parse(text: &str) -> Event {
    let mut event = Event::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => event.id = value.into(),
            "event" => event.kind = value.into(),
            "data" => event.data.push_str(value),
            _ => {}
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text =
            "retry: 1000\n: hello\n\nid: 7.0\nevent: active\ndata: {\"a\": 1}\n\n: heartbeat\nid: 9.0\n\n";
        let event =
            |id: &str, kind: &str, data: &str| Event { id: id.into(), kind: kind.into(), data: data.into() };
        let expected = [Event::default(), event("7.0", "active", "{\"a\": 1}"), event("9.0", "", "")];
        for cut in 0..text.len() {
            let mut reader = Reader::default();
            let mut events = reader.read(&text.as_bytes()[..cut]).unwrap();
            events.extend(reader.read(&text.as_bytes()[cut..]).unwrap());
            assert_eq!(events, expected, "cut at {cut}");
        }
        assert!(Reader::default().read(&vec![b'x'; EVENT_LEN_MAX + 1]).is_err());
    }
}
