//! The first words on every connection between nodes: both ends prove that they know the secret, and that they can
//! understand each other.
//!
//! In:    a fresh stream. Out: who is at the other end, and what the connection is for.
//! Never: sends the secret, lets a proof be used twice (both ends add fresh randomness to it), goes on with a node that
//!        could not read what this one writes, or gives a stranger anything to guess the secret by.
//!
//! Version 2: the caller greets, the other end greets, the caller proves itself, the other end proves itself. So a stranger
//! who calls learns nothing. One who is called learns a proof whose key takes 600,000 rounds of hashing to guess once.
//!
//! Version 1 (0.1.0): the other end proved itself first, to anybody, and with the secret itself as the key. It is spoken
//! only with nodes that speak nothing newer; `old_nodes.rs` knows which.

use std::io;
use std::ops::RangeInclusive;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Lane;
use super::connect::Door;
use super::secret::Secret;
use super::wire::{Stream, receive, send};
use crate::machine;
use crate::table_version::ENTRY_FORMAT_NEWEST;
use crate::types::NodeId;

/// The versions of this protocol that this binary speaks.
pub(super) const VERSIONS: RangeInclusive<u16> = 1..=2;
/// A greeting is short; a stranger's need not be read further.
const GREETING_MAX: usize = 1 << 10;
const MAGIC: [u8; 8] = *b"LHPEER\r\n";

type Proof = [u8; 32];

/// Stands where version 1 has the proof of the one that was called.
const NO_PROOF: Proof = [0; 32];

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

/// The last message of the calling end.
#[derive(Debug, Serialize, Deserialize)]
struct Purpose {
    proof: Proof,
    lane: Lane,
}

/// How the one that was called answers that.
#[derive(Debug, Serialize, Deserialize)]
enum Verdict {
    /// The end of version 1.
    Welcome,
    No(String),
    /// The end of version 2: and this is who I am.
    Proved(Proof),
}

impl Greeting {
    fn new(node: NodeId, written_format: u8) -> Self {
        let versions = (*VERSIONS.start(), *VERSIONS.end());
        let entry_formats = (ENTRY_FORMAT_NEWEST, written_format);
        Self { magic: MAGIC, versions, entry_formats, node, nonce: machine::random() }
    }

    /// Why the two can't talk; it is written for the log of either.
    fn check(&self, other: &Self) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        if other.magic != MAGIC {
            return refuse("the other side is not a Leasehold node".into());
        }
        if self.versions.0.max(other.versions.0) > self.versions.1.min(other.versions.1) {
            return refuse(format!(
                "node {} speaks versions {} to {} of the peer protocol, and node {} speaks {} to {}: upgrade one release at \
                 a time",
                other.node, other.versions.0, other.versions.1, self.node, self.versions.0, self.versions.1
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

/// The version that both speak.
fn common_version(one: &Greeting, two: &Greeting) -> u16 {
    one.versions.1.min(two.versions.1)
}

/// The end that calls goes first. Tells who answered, and the newest version that both ends speak.
pub(super) async fn call(stream: &mut Stream, door: &Door, lane: Lane) -> io::Result<(NodeId, u16)> {
    let ours = Greeting::new(door.node, door.versions.written_format());
    send(stream, &ours).await?;
    let (theirs, proof): (Greeting, Proof) = receive(stream, GREETING_MAX).await?;
    ours.check(&theirs)?;
    let version = common_version(&ours, &theirs);
    let proofs = Proofs { secret: &door.secret, version, caller: &ours, called: &theirs };
    if version == 1 {
        proofs.check(b"answers", &proof)?;
    }
    send(stream, &Purpose { proof: proofs.prove(&proofs.calls(lane))?, lane }).await?;
    match receive(stream, GREETING_MAX).await? {
        Verdict::Welcome if version == 1 => {
            door.versions.note_peer(theirs.node, theirs.entry_formats.0);
            Ok((theirs.node, version))
        }
        Verdict::Proved(proof) if version > 1 => {
            proofs.check(b"answers", &proof)?;
            door.versions.note_peer(theirs.node, theirs.entry_formats.0);
            Ok((theirs.node, version))
        }
        Verdict::No(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the handshake ended as that of another version does: upgrade one release at a time",
        )),
    }
}

/// The end that is called. Tells who called, what for, and the newest version that both ends speak.
pub(super) async fn answer(stream: &mut Stream, door: &Door) -> io::Result<(NodeId, Lane, u16)> {
    let theirs: Greeting = receive(stream, GREETING_MAX).await?;
    if theirs.magic != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side is not a Leasehold node"));
    }
    let ours = Greeting::new(door.node, door.versions.written_format());
    let version = common_version(&ours, &theirs);
    if version == 1 {
        // The log here says which node to upgrade; the caller learns nothing.
        ours.check(&theirs)?;
    }
    if version == 1 && !door.answers_version_1(theirs.node).await {
        let why =
            format!("it greets like release 0.1.0, and node {} is not known to be that old", theirs.node);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let proofs = Proofs { secret: &door.secret, version, caller: &theirs, called: &ours };
    let first = if version == 1 { proofs.prove(b"answers")? } else { NO_PROOF };
    send(stream, &(&ours, first)).await?;
    let purpose: Purpose = match receive(stream, GREETING_MAX).await {
        Ok(purpose) => purpose,
        // A caller that is too old, or too new, sees that first and hangs up: the log here says so too.
        Err(gone) => return Err(ours.check(&theirs).err().unwrap_or(gone)),
    };
    let proved = proofs.check(&proofs.calls(purpose.lane), &purpose.proof);
    match proved.and_then(|()| ours.check(&theirs)) {
        Ok(()) => {
            door.versions.note_peer(theirs.node, theirs.entry_formats.0);
            let last =
                if version == 1 { Verdict::Welcome } else { Verdict::Proved(proofs.prove(b"answers")?) };
            send(stream, &last).await?;
            Ok((theirs.node, purpose.lane, version))
        }
        Err(error) => {
            send(stream, &Verdict::No(error.to_string())).await.ok();
            Err(error)
        }
    }
}

/// Makes and checks the proofs of one handshake.
struct Proofs<'a> {
    secret: &'a Secret,
    version: u16,
    caller: &'a Greeting,
    called: &'a Greeting,
}

impl Proofs<'_> {
    /// The role of the end that calls. Version 1 leaves out what it calls for.
    fn calls(&self, lane: Lane) -> Vec<u8> {
        let mut role = b"calls".to_vec();
        if self.version > 1 {
            role.push(lane as u8);
        }
        role
    }

    fn mac(&self, role: &[u8]) -> io::Result<Hmac<Sha256>> {
        let key = if self.version == 1 { self.secret.text() } else { self.secret.stretched() };
        let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(io::Error::other)?;
        mac.update(role);
        mac.update(&postcard::to_stdvec(&(self.caller, self.called)).map_err(io::Error::other)?);
        Ok(mac)
    }

    fn prove(&self, role: &[u8]) -> io::Result<Proof> {
        Ok(self.mac(role)?.finalize().into_bytes().into())
    }

    fn check(&self, role: &[u8], proof: &Proof) -> io::Result<()> {
        self.mac(role)?.verify_slice(proof).map_err(|_| {
            io::Error::new(io::ErrorKind::PermissionDenied, "the cluster secrets of the two nodes differ")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table_version::TableVersions;

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
        assert_eq!(raised.entry_formats, (ENTRY_FORMAT_NEWEST, 3));
        let refusal = raised.check(&old).unwrap_err().to_string();
        assert!(refusal.contains("node 3 is too old") && refusal.contains("upgrade node 3"), "{refusal}");
    }

    /// As `tests/golden/0.1.0/messages.txt` has them.
    #[test]
    fn greetings_stay_what_release_0_1_0_sends() {
        let released = crate::peer::golden::released();
        let greeting = Greeting { versions: (1, 1), nonce: [7; 32], ..greeting(2) };
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
    fn proofs_are_for_one_role_one_pair_one_purpose_and_one_secret() {
        let (one, two) = (greeting(1), greeting(2));
        let (secret, other) =
            (Secret::new("a secret of the tests").unwrap(), Secret::new("another secret of them").unwrap());
        for version in [1, 2] {
            let of = |secret, caller, called| Proofs { secret, version, caller, called };
            let proofs = of(&secret, &one, &two);
            let calls = proofs.calls(Lane::Ask);
            let proof = proofs.prove(&calls).unwrap();
            assert!(proofs.check(&calls, &proof).is_ok());
            assert!(proofs.check(b"answers", &proof).is_err());
            assert_eq!(proofs.check(&proofs.calls(Lane::Append), &proof).is_ok(), version == 1);
            assert!(of(&secret, &two, &one).check(&calls, &proof).is_err());
            let again = greeting(2);
            assert!(of(&secret, &one, &again).check(&calls, &proof).is_err());
            assert!(of(&other, &one, &two).check(&calls, &proof).is_err());
            assert!(Proofs { version: 3 - version, ..proofs }.check(&calls, &proof).is_err());
        }
    }

    fn door(node: NodeId) -> Door {
        Door::new(node, Secret::new("a secret of the tests").unwrap(), None, Default::default())
    }

    /// Two ends of a connection.
    fn streams() -> (Stream, Stream) {
        let (one, two) = tokio::io::duplex(1 << 16);
        (Box::new(one), Box::new(two))
    }

    #[tokio::test]
    async fn two_new_nodes_know_each_other_by_version_2() {
        let (mut one, mut two) = streams();
        let (caller, called) = (door(1), door(2));
        let (call, answer) = tokio::join!(call(&mut one, &caller, Lane::Append), answer(&mut two, &called));
        assert_eq!((call.unwrap(), answer.unwrap()), ((2, 2), (1, Lane::Append, 2)));
    }

    /// The caller of 0.1.0, word by word.
    async fn call_of_version_1(stream: &mut Stream, secret: &Secret, node: NodeId) -> io::Result<NodeId> {
        let ours = Greeting { versions: (1, 1), ..greeting(node) };
        send(stream, &ours).await?;
        let (theirs, proof): (Greeting, Proof) = receive(stream, GREETING_MAX).await?;
        let proofs = Proofs { secret, version: 1, caller: &ours, called: &theirs };
        proofs.check(b"answers", &proof)?;
        send(stream, &Purpose { proof: proofs.prove(b"calls")?, lane: Lane::Ask }).await?;
        match receive(stream, GREETING_MAX).await? {
            Verdict::Welcome => Ok(theirs.node),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    #[tokio::test]
    async fn an_old_node_is_answered_only_if_it_is_known_to_be_one() {
        let (old, new) = (door(1), door(2));
        let (mut one, mut two) = streams();
        let answered = async {
            let answered = answer(&mut two, &new).await;
            drop(two);
            answered
        };
        let (called, answered) = tokio::join!(call_of_version_1(&mut one, &old.secret, 1), answered);
        assert_eq!(called.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "not a byte for a stranger");
        assert!(answered.unwrap_err().to_string().contains("not known to be that old"));
        new.note_version(1, 1);
        let (mut one, mut two) = streams();
        let (called, answered) =
            tokio::join!(call_of_version_1(&mut one, &old.secret, 1), answer(&mut two, &new));
        assert_eq!((called.unwrap(), answered.unwrap()), (2, (1, Lane::Ask, 1)));
        // Once it has been upgraded, nobody can pose as its old self.
        new.note_version(1, 2);
        assert!(!new.answers_version_1(1).await);
    }

    /// The called end of 0.1.0, word by word.
    async fn answer_of_version_1(stream: &mut Stream, secret: &Secret, node: NodeId) -> io::Result<NodeId> {
        let theirs: Greeting = receive(stream, GREETING_MAX).await?;
        let ours = Greeting { versions: (1, 1), ..greeting(node) };
        let proofs = Proofs { secret, version: 1, caller: &theirs, called: &ours };
        send(stream, &(&ours, proofs.prove(b"answers")?)).await?;
        let purpose: Purpose = receive(stream, GREETING_MAX).await?;
        proofs.check(b"calls", &purpose.proof)?;
        send(stream, &Verdict::Welcome).await?;
        Ok(theirs.node)
    }

    #[tokio::test]
    async fn a_new_node_calls_an_old_one_and_proves_nothing_to_one_that_only_says_so() {
        let caller = door(1);
        let secret = &caller.secret;
        let (mut one, mut two) = streams();
        let (called, answered) =
            tokio::join!(call(&mut one, &caller, Lane::Ask), answer_of_version_1(&mut two, secret, 2));
        assert_eq!((called.unwrap(), answered.unwrap()), ((2, 1), 1));
        let stranger = Secret::new("a guess of a stranger").unwrap();
        let (mut one, mut two) = streams();
        let called = async {
            let called = call(&mut one, &caller, Lane::Ask).await;
            drop(one);
            called
        };
        let (called, answered) = tokio::join!(called, answer_of_version_1(&mut two, &stranger, 2));
        assert_eq!(called.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(answered.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "the caller proved itself");
    }
}
