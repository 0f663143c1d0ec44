//! The first words on every connection between nodes: both ends prove that they know the secret, and that they can
//! understand each other.
//!
//! In:    a fresh stream. Out: who is at the other end, and what the connection is for.
//! Never: sends the secret, lets a proof be used twice (both ends add fresh randomness to it), or goes on with a node
//!        that could not read what this one writes.

use std::io;
use std::ops::RangeInclusive;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Lane;
use super::connect::Secret;
use super::wire::{Stream, receive, send};
use crate::engine::table_version::{ENTRY_FORMAT_NEWEST, TableVersions};
use crate::engine::types::NodeId;

/// The versions of this protocol that this binary speaks.
pub(super) const VERSIONS: RangeInclusive<u16> = 1..=1;
/// A greeting is short; a stranger's need not be read further.
const GREETING_MAX: usize = 1 << 10;
const MAGIC: [u8; 8] = *b"LHPEER\r\n";

type Proof = [u8; 32];

/// What each end says first.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Greeting {
    magic: [u8; 8],
    /// The oldest and the newest version of the protocol it speaks.
    versions: (u16, u16),
    /// The newest format of log entries it reads, and the newest one it writes: that of its table's version.
    entry_formats: (u8, u8),
    node: NodeId,
    /// Random, so that no proof is of use a second time.
    nonce: [u8; 32],
}

/// The last word of whoever called.
#[derive(Debug, Serialize, Deserialize)]
struct Purpose {
    proof: Proof,
    lane: Lane,
}

/// How the one that was called answers that.
#[derive(Debug, Serialize, Deserialize)]
enum Verdict {
    Welcome,
    No(String),
}

impl Greeting {
    fn new(node: NodeId, written_format: u8) -> Self {
        let versions = (*VERSIONS.start(), *VERSIONS.end());
        let entry_formats = (ENTRY_FORMAT_NEWEST, written_format);
        Self { magic: MAGIC, versions, entry_formats, node, nonce: rand::random() }
    }

    /// Why the two can't talk; it is written for the log of either.
    fn check(&self, other: &Self) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        if other.magic != MAGIC {
            return refuse("what came is no greeting of a Leasehold node".into());
        }
        if self.versions.0.max(other.versions.0) > self.versions.1.min(other.versions.1) {
            return refuse(format!(
                "node {} speaks the peer protocol {:?}, and node {} speaks {:?}: upgrade one version at a time",
                other.node, other.versions, self.node, self.versions
            ));
        }
        for (writer, reader) in [(self, other), (other, self)] {
            let (written, read) = (writer.entry_formats.1, reader.entry_formats.0);
            if written > read {
                return refuse(format!(
                    "node {} is too old: it reads log entries up to format {read}, and node {} writes format {written}: \
                     upgrade node {}",
                    reader.node, writer.node, reader.node
                ));
            }
        }
        Ok(())
    }
}

/// Whoever calls goes first. Tells who answered.
pub(super) async fn call(
    stream: &mut Stream,
    secret: &Secret,
    table_versions: &TableVersions,
    node: NodeId,
    lane: Lane,
) -> io::Result<NodeId> {
    let ours = Greeting::new(node, table_versions.written_format());
    send(stream, &ours).await?;
    let (theirs, proof): (Greeting, Proof) = receive(stream, GREETING_MAX).await?;
    ours.check(&theirs)?;
    secret.check(b"answers", &ours, &theirs, &proof)?;
    send(stream, &Purpose { proof: secret.prove(b"calls", &ours, &theirs)?, lane }).await?;
    match receive(stream, GREETING_MAX).await? {
        Verdict::Welcome => {
            table_versions.note_peer(theirs.node, theirs.entry_formats.0);
            Ok(theirs.node)
        }
        Verdict::No(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
    }
}

/// Whoever is called. Tells who called, and what for.
pub(super) async fn answer(
    stream: &mut Stream,
    secret: &Secret,
    table_versions: &TableVersions,
    node: NodeId,
) -> io::Result<(NodeId, Lane)> {
    let theirs: Greeting = receive(stream, GREETING_MAX).await?;
    if theirs.magic != MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what came is no greeting of a Leasehold node",
        ));
    }
    let ours = Greeting::new(node, table_versions.written_format());
    send(stream, &(&ours, secret.prove(b"answers", &theirs, &ours)?)).await?;
    let purpose: Purpose = match receive(stream, GREETING_MAX).await {
        Ok(purpose) => purpose,
        // A caller that is too old, or too new, sees that first and hangs up: the log here says so too.
        Err(gone) => return Err(ours.check(&theirs).err().unwrap_or(gone)),
    };
    let checked = secret.check(b"calls", &theirs, &ours, &purpose.proof).and_then(|()| ours.check(&theirs));
    match checked {
        Ok(()) => {
            table_versions.note_peer(theirs.node, theirs.entry_formats.0);
            send(stream, &Verdict::Welcome).await?;
            Ok((theirs.node, purpose.lane))
        }
        Err(error) => {
            send(stream, &Verdict::No(error.to_string())).await.ok();
            Err(error)
        }
    }
}

impl Secret {
    fn mac(&self, role: &[u8], caller: &Greeting, called: &Greeting) -> io::Result<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.bytes()).map_err(io::Error::other)?;
        mac.update(role);
        mac.update(&postcard::to_stdvec(&(caller, called)).map_err(io::Error::other)?);
        Ok(mac)
    }

    fn prove(&self, role: &[u8], caller: &Greeting, called: &Greeting) -> io::Result<Proof> {
        Ok(self.mac(role, caller, called)?.finalize().into_bytes().into())
    }

    fn check(&self, role: &[u8], caller: &Greeting, called: &Greeting, proof: &Proof) -> io::Result<()> {
        self.mac(role, caller, called)?.verify_slice(proof).map_err(|_| {
            io::Error::new(io::ErrorKind::PermissionDenied, "the cluster secrets of the two nodes differ")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A greeting of this build, whose table is of the first version.
    fn greeting(node: NodeId) -> Greeting {
        Greeting::new(node, TableVersions::default().written_format())
    }

    #[test]
    fn a_node_refuses_one_that_could_not_read_its_entries() {
        let ours = greeting(1);
        assert!(ours.check(&greeting(2)).is_ok());
        let newer = Greeting { entry_formats: (9, 9), ..greeting(2) };
        assert!(ours.check(&newer).unwrap_err().to_string().contains("upgrade node 1"));
        assert!(newer.check(&ours).unwrap_err().to_string().contains("upgrade node 1"));
        let reads_both = Greeting { entry_formats: (9, ours.entry_formats.1), ..greeting(2) };
        assert!(ours.check(&reads_both).is_ok());
        let other = Greeting { versions: (7, 8), ..greeting(2) };
        assert!(ours.check(&other).is_err());
    }

    #[test]
    fn release_0_1_0_is_a_peer_until_the_table_version_is_raised() {
        let versions = TableVersions::default();
        let old = Greeting { entry_formats: (2, 2), ..greeting(3) };
        assert!(Greeting::new(1, versions.written_format()).check(&old).is_ok());
        versions.set(2);
        let raised = Greeting::new(1, versions.written_format());
        assert_eq!(raised.entry_formats, (3, 3));
        let refusal = raised.check(&old).unwrap_err().to_string();
        assert!(refusal.contains("node 3 is too old") && refusal.contains("upgrade node 3"), "{refusal}");
    }

    /// As `tests/golden/0.1.0/messages.txt` has them.
    #[test]
    fn greetings_stay_what_release_0_1_0_sends() {
        let released = crate::engine::peer::golden::released();
        let greeting = Greeting { nonce: [7; 32], ..greeting(2) };
        let greeting = Greeting { entry_formats: (2, greeting.entry_formats.1), ..greeting };
        let purpose = Purpose { proof: [9; 32], lane: Lane::Append };
        let written = [
            ("greeting", postcard::to_stdvec(&greeting)),
            ("greeted", postcard::to_stdvec(&(&greeting, [8_u8; 32]))),
            ("purpose", postcard::to_stdvec(&purpose)),
            ("welcome", postcard::to_stdvec(&Verdict::Welcome)),
            ("turned_away", postcard::to_stdvec(&Verdict::No("no".into()))),
        ];
        for (name, written) in written {
            assert_eq!(written.unwrap(), released[name], "{name}");
        }
        let came: Greeting = postcard::from_bytes(&released["greeting"]).unwrap();
        assert!(Greeting::new(1, TableVersions::default().written_format()).check(&came).is_ok());
        let (came, _): (Greeting, Proof) = postcard::from_bytes(&released["greeted"]).unwrap();
        assert_eq!((came.node, came.entry_formats), (2, (2, 2)));
        assert_eq!(postcard::from_bytes::<Purpose>(&released["purpose"]).unwrap().lane, Lane::Append);
        assert!(matches!(postcard::from_bytes(&released["welcome"]), Ok(Verdict::Welcome)));
        assert!(
            matches!(postcard::from_bytes(&released["turned_away"]), Ok(Verdict::No(why)) if why == "no")
        );
    }

    #[test]
    fn proofs_are_for_one_role_one_pair_and_one_secret() {
        let (one, two) = (greeting(1), greeting(2));
        let secret = Secret::new("a secret of the tests").unwrap();
        let proof = secret.prove(b"calls", &one, &two).unwrap();
        assert!(secret.check(b"calls", &one, &two, &proof).is_ok());
        assert!(secret.check(b"answers", &one, &two, &proof).is_err());
        assert!(secret.check(b"calls", &two, &one, &proof).is_err());
        assert!(secret.check(b"calls", &one, &greeting(2), &proof).is_err());
        assert!(Secret::new("another secret of them").unwrap().check(b"calls", &one, &two, &proof).is_err());
    }
}
