//! The headers of a request, where they came in.
//!
//! In:    the bytes of a head, and where its names and values are; or names and values. Out: values by name.
//! Never: copies or hashes a name: a request has few headers and is asked for few of them, and to walk past them is faster
//!        than to build a map of them first.

use bytes::Bytes;

/// Names and values, in the order in which they came.
#[derive(Debug, Default)]
pub struct Headers {
    bytes: Bytes,
    /// Where the name and the value of each are. A head has 64 KiB at most.
    fields: Vec<(Span, Span)>,
}

/// The first byte of a name or value, and the byte behind its last.
type Span = (u32, u32);

/// What a header says: bytes without control characters, mostly text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a>(&'a [u8]);

impl Headers {
    /// The headers that stand at these places of a head.
    pub(crate) fn new(bytes: Bytes, fields: Vec<(Span, Span)>) -> Self {
        Self { bytes, fields }
    }

    /// The first value of this name, in large letters or small ones.
    pub fn get(&self, name: impl AsRef<str>) -> Option<Value<'_>> {
        let name = name.as_ref().as_bytes();
        self.fields.iter().find(|(known, _)| self.is(*known, name)).map(|(_, value)| Value(self.at(*value)))
    }

    /// The same, for later: it keeps the head.
    pub fn share(&self, name: impl AsRef<str>) -> Option<Bytes> {
        self.get(name).map(|value| self.bytes.slice_ref(value.0))
    }

    /// All values of this name.
    pub fn get_all<'a, N: AsRef<str>>(&'a self, name: N) -> impl Iterator<Item = Value<'a>> + use<'a, N> {
        let named = self.fields.iter().filter(move |(known, _)| self.is(*known, name.as_ref().as_bytes()));
        named.map(|(_, value)| Value(self.at(*value)))
    }

    /// Whether there is a header of this name.
    pub fn contains_key(&self, name: impl AsRef<str>) -> bool {
        self.get(name).is_some()
    }

    fn is(&self, place: Span, name: &[u8]) -> bool {
        (place.1 - place.0) as usize == name.len() && self.at(place).eq_ignore_ascii_case(name)
    }

    fn at(&self, place: Span) -> &[u8] {
        &self.bytes[place.0 as usize..place.1 as usize]
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(all: I) -> Self {
        let mut bytes = Vec::new();
        let mut add = |piece: &[u8]| {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(piece);
            (start, bytes.len() as u32)
        };
        let fields = all
            .into_iter()
            .map(|(name, value)| (add(name.as_ref().as_bytes()), add(value.as_ref())))
            .collect();
        Self { bytes: bytes.into(), fields }
    }
}

impl<'a> Value<'a> {
    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The same as text, if it is plain ASCII.
    pub fn to_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok().filter(|text| text.is_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_whatever_its_case() {
        let headers =
            Headers::from_iter([("Host", "x"), ("X-Two", "a"), ("HOSTS", "y"), ("x-tWO", "b\u{fc}")]);
        let all =
            |name: &str| headers.get_all(name).map(|value| value.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(headers.get("host").and_then(Value::to_str), Some("x"));
        assert_eq!(all("x-two"), [b"a".to_vec(), "b\u{fc}".into()]);
        assert_eq!(headers.get_all("x-two").map(Value::to_str).collect::<Vec<_>>(), [Some("a"), None]);
        assert!(headers.contains_key("hosts") && !headers.contains_key("hos") && !headers.contains_key(""));
    }
}
