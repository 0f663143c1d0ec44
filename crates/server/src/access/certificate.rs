//! Client certificates: who one is about.
//!
//! In:    a certificate that TLS has verified already, in DER. Out: its user and groups, and when it expires.
//! Never: decides whether it is valid: the handshake has.
//!
//! Only the way to the subject and the alternative names is read; whatever else a certificate contains is passed over.

use serde::Deserialize;

use super::identity::{How, Identity};

/// What of a certificate names the user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserFrom {
    /// The subject's common name.
    #[default]
    CommonName,
    /// The first alternative name that is an e-mail address.
    Email,
    /// The first that is a DNS name.
    Dns,
    /// The first that is a URI (SPIFFE).
    Uri,
}

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
const ORGANIZATIONAL_UNIT: &[u8] = &[0x55, 0x04, 0x0b];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const EXTENSIONS: u8 = 0xa3;

/// The identity in a certificate: organisations and units are its groups.
pub fn identify(der: &[u8], user_from: UserFrom) -> Result<Identity, String> {
    let subject = Subject::read(der).ok_or("the client certificate can't be read")?;
    let user = match user_from {
        UserFrom::CommonName => subject.common_name,
        UserFrom::Email => subject.email,
        UserFrom::Dns => subject.dns,
        UserFrom::Uri => subject.uri,
    };
    let user = user.ok_or_else(|| format!("the client certificate has no {user_from:?} to name its user"))?;
    Identity::new(&user, &subject.groups, How::Certificate)
}

/// When a certificate stops being valid, in unix seconds.
pub fn expires(der: &[u8]) -> Option<u64> {
    let (_, certificate, _) = element(der)?;
    let (_, mut rest, _) = element(certificate)?;
    let mut sequences = 0;
    loop {
        let (tag, content, after) = element(rest)?;
        rest = after;
        sequences += usize::from(tag == SEQUENCE);
        // Algorithm, issuer, validity: from, until.
        if sequences == 3 {
            let (_, _, until) = element(content)?;
            let (tag, until, _) = element(until)?;
            return instant(tag, std::str::from_utf8(until).ok()?);
        }
    }
}

/// `YYMMDDhhmmssZ` of the years 1950 to 2049, or `YYYYMMDDhhmmssZ`.
fn instant(tag: u8, text: &str) -> Option<u64> {
    let digits =
        text.strip_suffix('Z').filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    let digits = match (tag, digits.len()) {
        (UTC_TIME, 12) if digits < "50" => format!("20{digits}"),
        (UTC_TIME, 12) => format!("19{digits}"),
        (GENERALIZED_TIME, 14) => digits.into(),
        _ => return None,
    };
    let number = |range: std::ops::Range<usize>| digits[range].parse::<i8>().ok();
    let year = digits[..4].parse().ok()?;
    let (month, day) = (number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(8..10)?, number(10..12)?, number(12..14)?);
    let time = jiff::civil::DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    // One without an end says the last second of the year 9999; one that expired before 1970 has expired, too.
    let seconds = time.duration_since(jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0)).as_secs();
    Some(u64::try_from(seconds).unwrap_or(0))
}

#[derive(Debug, Default)]
struct Subject {
    common_name: Option<String>,
    groups: Vec<String>,
    email: Option<String>,
    dns: Option<String>,
    uri: Option<String>,
}

impl Subject {
    fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate, _) = element(der)?;
        let (_, mut rest, _) = element(certificate)?;
        let mut subject = Self::default();
        let mut sequences = 0;
        while let Some((tag, content, after)) = element(rest) {
            rest = after;
            match tag {
                SEQUENCE => {
                    sequences += 1;
                    // Algorithm, issuer, validity, subject, in this order.
                    if sequences == 4 {
                        subject.read_names(content)?;
                    }
                }
                EXTENSIONS => subject.read_extensions(element(content)?.1),
                _ => {}
            }
        }
        (sequences >= 4).then_some(subject)
    }

    fn read_names(&mut self, mut names: &[u8]) -> Option<()> {
        while let Some((_, mut set, after)) = element(names) {
            names = after;
            while let Some((_, pair, next)) = element(set) {
                set = next;
                let (_, kind, value) = element(pair)?;
                let (_, value, _) = element(value)?;
                let Ok(text) = std::str::from_utf8(value) else { continue };
                match kind {
                    COMMON_NAME => self.common_name = Some(text.into()),
                    ORGANIZATION | ORGANIZATIONAL_UNIT => self.groups.push(text.into()),
                    _ => {}
                }
            }
        }
        Some(())
    }

    fn read_extensions(&mut self, mut extensions: &[u8]) {
        while let Some((_, extension, after)) = element(extensions) {
            extensions = after;
            let Some((_, ALTERNATIVE_NAMES, mut rest)) = element(extension) else { continue };
            // A flag may stand between the kind and the value.
            while let Some((tag, value, next)) = element(rest) {
                rest = next;
                if tag == 0x04
                    && let Some((SEQUENCE, names, _)) = element(value)
                {
                    self.read_alternatives(names);
                }
            }
        }
    }

    fn read_alternatives(&mut self, mut names: &[u8]) {
        while let Some((tag, value, after)) = element(names) {
            names = after;
            let Ok(text) = std::str::from_utf8(value) else { continue };
            let place = match tag {
                0x81 => &mut self.email,
                0x82 => &mut self.dns,
                0x86 => &mut self.uri,
                _ => continue,
            };
            place.get_or_insert_with(|| text.into());
        }
    }
}

/// The first element: its tag, its content, and what comes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, after) = rest.split_at_checked(len)?;
    Some((tag, content, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_certificates_are_refused_and_never_crash() {
        for der in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x02\x30\x00", b"\x30\x80\x00\x00"]
        {
            assert!(identify(der, UserFrom::CommonName).is_err(), "{der:?}");
            assert_eq!(expires(der), None, "{der:?}");
        }
    }

    #[test]
    fn both_kinds_of_time_are_understood_and_nothing_else() {
        assert_eq!(instant(UTC_TIME, "231114221320Z"), Some(1_700_000_000));
        assert_eq!(instant(GENERALIZED_TIME, "20231114221320Z"), Some(1_700_000_000));
        assert_eq!(instant(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
        assert_eq!(instant(UTC_TIME, "500101000000Z"), Some(0));
        for odd in
            ["", "Z", "231114221320", "2311142213Z", "231314221320Z", "231114221320+0100", "23111422132éZ"]
        {
            assert_eq!(instant(UTC_TIME, odd), None, "{odd}");
        }
    }
}
