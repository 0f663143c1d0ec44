//! Access keys: the credentials of machines, and the file that knows their hashes.
//!
//! In:    a TOML file of hashes; keys that requests carry. Out: the identity that a key stands for.
//! Never: keeps a key: what was made is shown once. A key is 256 random bits, so one SHA-256 is hash enough.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::identity::{How, Identity, check_user};

/// What every key starts with, so that scanners for leaked secrets can find it.
pub const PREFIX: &str = "lhk_";
/// Largest file of keys.
const FILE_LEN_MAX: u64 = 16 << 20;

/// One key, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// Its public name, for lists and withdrawal.
    pub id: String,
    /// Whom it stands for.
    pub user: String,
    /// In which groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Where it is used, in the operator's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it was made, in unix seconds.
    pub created: u64,
    /// When it stops being valid, in unix seconds; never, if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// SHA-256 of the key, in hex.
    pub sha256: String,
}

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The keys.
    #[serde(default, rename = "key", skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyEntry>,
}

/// Keys, ready to be looked up.
#[derive(Debug, Default)]
pub struct Keys {
    by_hash: HashMap<[u8; 32], LoadedKey>,
    ids: Vec<String>,
}

/// A key of the file, found by its hash.
#[derive(Debug)]
struct LoadedKey {
    identity: Arc<Identity>,
    expires: Option<u64>,
}

impl KeyFile {
    /// Reads a file; one that does not exist has no keys.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Ok(metadata) if metadata.len() > FILE_LEN_MAX => {
                return Err(failed(format!("it is larger than {FILE_LEN_MAX} bytes")));
            }
            _ => {}
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        toml::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// Writes it whole or not at all. A new file is for its owner's eyes alone. One that is there keeps its owner and its mode: a
    /// service under another user could otherwise not read it any more.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut text = String::from(
            "# Access keys of Leasehold: hashes only. Made and withdrawn by `leasehold access key`.\n",
        );
        for key in &self.keys {
            text += &key.to_toml();
        }
        let new = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
        let mode = match std::fs::metadata(path) {
            Ok(before) => {
                fchown(&file, Some(before.uid()), Some(before.gid())).map_err(|error| {
                    let (user, group) = (before.uid(), before.gid());
                    format!(
                        "{}: it belongs to user {user}, group {group}: do this as root: {error}",
                        path.display()
                    )
                })?;
                before.mode() & 0o777
            }
            Err(_) => 0o600,
        };
        file.set_permissions(std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&new, path).map_err(failed)
    }

    /// Adds a key and gives it back: this is the only time that anyone sees it.
    pub fn make(
        &mut self,
        user: &str,
        groups: &[String],
        note: &str,
        now: u64,
        expires: Option<u64>,
    ) -> Result<(String, KeyEntry), String> {
        check_user(user)?;
        let (id, secret): ([u8; 6], [u8; 32]) = (rand::random(), rand::random());
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let key = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        let entry = KeyEntry {
            id,
            user: user.into(),
            groups: groups.to_vec(),
            note: note.into(),
            created: now,
            expires,
            sha256: hex(&Sha256::digest(key.as_bytes())),
        };
        self.keys.push(entry.clone());
        Ok((key, entry))
    }

    /// Takes a key out; whether it was there.
    pub fn withdraw(&mut self, id: &str) -> Option<KeyEntry> {
        let place = self.keys.iter().position(|key| key.id == id)?;
        Some(self.keys.remove(place))
    }
}

impl KeyEntry {
    fn to_toml(&self) -> String {
        // Strings of TOML and JSON are the same, for text without control characters.
        let text = |text: &str| serde_json::to_string(text).unwrap_or_default();
        let groups = self.groups.iter().map(|group| text(group)).collect::<Vec<_>>().join(", ");
        let mut out = format!("\n[[key]]\nid = {}\nuser = {}\n", text(&self.id), text(&self.user));
        if !self.groups.is_empty() {
            out += &format!("groups = [{groups}]\n");
        }
        if !self.note.is_empty() {
            out += &format!("note = {}\n", text(&self.note));
        }
        out += &format!("created = {}\n", self.created);
        if let Some(expires) = self.expires {
            out += &format!("expires = {expires}\n");
        }
        out + &format!("sha256 = {}\n", text(&self.sha256))
    }
}

impl Keys {
    /// Checks every entry.
    pub fn new(file: &KeyFile) -> Result<Self, String> {
        let mut keys = Self::default();
        for entry in &file.keys {
            let bad = |why: String| format!("key '{}': {why}", entry.id);
            let hash = unhex(&entry.sha256).ok_or_else(|| bad("sha256 must be 64 hex digits".into()))?;
            let identity = Identity::new(&entry.user, &entry.groups, How::Key).map_err(bad)?;
            keys.by_hash.insert(hash, LoadedKey { identity: Arc::new(identity), expires: entry.expires });
            keys.ids.push(entry.id.clone());
        }
        Ok(keys)
    }

    /// The public names of all keys.
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// The users of all keys.
    pub fn users(&self) -> impl Iterator<Item = Arc<str>> {
        self.by_hash.values().map(|known| known.identity.user.clone())
    }

    /// Whom a key stands for, by its hash, and when it ends.
    pub fn find(&self, hash: &[u8; 32], now: u64) -> Option<(Arc<Identity>, Option<u64>)> {
        let LoadedKey { identity, expires } = self.by_hash.get(hash)?;
        expires.is_none_or(|expires| now < expires).then(|| (identity.clone(), *expires))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_hash_until_it_expires_or_is_withdrawn() {
        let mut file = KeyFile::default();
        let (key, entry) = file.make("ci \"x\"", &["ops".into()], "a \\ note", 100, Some(200)).unwrap();
        let text: String = file.keys.iter().map(KeyEntry::to_toml).collect();
        assert_eq!(toml::from_str::<KeyFile>(&text).unwrap(), file);
        assert!(!text.contains(&key));
        let keys = Keys::new(&file).unwrap();
        let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let (identity, expires) = keys.find(&hash, 199).unwrap();
        assert_eq!((&*identity.user, expires), ("ci \"x\"", Some(200)));
        assert!(keys.find(&hash, 200).is_none());
        assert!(keys.find(&[0; 32], 0).is_none());
        assert!(file.withdraw(&entry.id).is_some() && file.withdraw(&entry.id).is_none());
        assert!(Keys::new(&file).unwrap().find(&hash, 0).is_none());
    }
}
