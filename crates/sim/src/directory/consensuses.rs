//! The consensuses of the same network as Tor's authorities would make them, in the flavour with microdescriptors, and what directory caches answer,
//! compressed. dir-spec "Computing a consensus", "Computing microdescriptors", "Consensus diffs". Lines and sizes are those that C tor 0.4.9 writes;
//! signatures and RSA keys are numbers at random, as nobody checks them here: they are as long, and compress as little.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    io::Write as _,
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use flate2::{Compression, write::ZlibEncoder};
use hoplite_crypto::onion::{rsa::sha256, service_keys::sha3_256};
use hoplite_wire::tor::{Flags, consensus_diff::ConsensusDiff, date};

use super::{
    Settings, lifetime,
    population::{Listed, Named, Population},
};
use crate::random::Random;

/// Earlier consensuses that caches tell the difference to.
const EARLIER: usize = 24;
/// Microdescriptors of one question.
const BATCH: usize = 92;
/// Bytes of an RSA key of 1,024 bits in its object, of a signature by one of 2,048, and of a key certificate of C tor's, compressed.
const RSA_KEY: usize = 140;
const SIGNATURE: usize = 256;
const CERTIFICATE: u64 = 1460;
/// Characters in a line of an object.
const LINE: usize = 64;

const HEAD: &str =
    "network-status-version 3 microdesc\nvote-status consensus\nconsensus-method 35\n";
const VERSIONS: &str = "voting-delay 300 300\nclient-versions 0.4.8.14,0.4.8.21,0.4.9.11\nserver-versions 0.4.8.14,0.4.8.21,0.4.9.11\n\
known-flags Authority BadExit Exit Fast Guard HSDir MiddleOnly NoEdConsensus Running Stable StaleDesc Sybil V2Dir Valid\n\
recommended-client-protocols Cons=2 Desc=2 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4 HSRend=2 Link=4-5 Microdesc=2 Relay=2-4\n\
recommended-relay-protocols Cons=2 Desc=2 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=2 Link=4-5 LinkAuth=3 Microdesc=2 Relay=2-4\n\
required-client-protocols Cons=2 Desc=2 FlowCtrl=1 Link=4 Microdesc=2 Relay=2\n\
required-relay-protocols Cons=2 Desc=2 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=2 Link=4-5 LinkAuth=3 Microdesc=2 Relay=2-4\n\
params CircuitPriorityHalflifeMsec=30000 DoSCircuitCreationEnabled=1 DoSConnectionEnabled=1 ExtendByEd25519ID=1 cc_alg=2 circwindow=1000\n";
const PROTOCOLS: &str = "v Tor 0.4.9.11\npr Conflux=1 Cons=1-2 Desc=1-4 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=1-2 Link=3-5 LinkAuth=3 \
Microdesc=1-3 Padding=2 Relay=2-6\n";
const FOOTER: &str = "directory-footer\nbandwidth-weights Wbd=0 Wbe=0 Wbg=4194 Wbm=10000 Wdb=10000 Web=10000 Wed=10000 Wee=10000 Weg=10000 \
Wem=10000 Wgb=10000 Wgd=0 Wgg=5806 Wgm=5806 Wmb=10000 Wmd=0 Wme=0 Wmg=4194 Wmm=10000\n";

/// What is given of consensuses.
#[derive(Debug)]
pub struct Consensuses {
    hours: Vec<Given>,
    /// Bytes of the key certificates of all authorities.
    certificates: u64,
    /// What was asked for already, by from and to.
    consensus_bytes: HashMap<(Option<usize>, usize), u64>,
    microdescriptor_bytes: HashMap<(Option<usize>, usize), u64>,
}

#[derive(Debug)]
struct Given {
    text: String,
    /// SHA3-256 of what is signed.
    from: [u8; 32],
    /// SHA3-256 of all of it.
    to: [u8; 32],
    /// What describes its relays, by the SHA-256.
    microdescriptors: BTreeMap<[u8; 32], String>,
}

impl Consensuses {
    /// Writes all of them.
    pub fn made(population: &Population, settings: &Settings) -> Self {
        let hours = population.hours.iter().enumerate();
        let hours = hours.map(|(hour, listed)| Given::made(hour, listed, population, settings));
        let authorities = u64::try_from(settings.authorities).unwrap_or(u64::MAX);
        Self {
            hours: hours.collect(),
            certificates: authorities.saturating_mul(CERTIFICATE),
            consensus_bytes: HashMap::new(),
            microdescriptor_bytes: HashMap::new(),
        }
    }

    /// The consensus of an hour.
    pub fn text(&self, hour: usize) -> &str {
        self.hours.get(hour).map_or("", |given| &given.text)
    }

    /// What describes the relays of an hour, one behind the other.
    pub fn microdescriptors(&self, hour: usize) -> String {
        let given = self.hours.get(hour);
        given.map_or_else(String::new, |given| {
            given
                .microdescriptors
                .values()
                .map(String::as_str)
                .collect()
        })
    }

    /// Bytes of the certificates that who begins needs.
    pub fn certificates(&self) -> u64 {
        self.certificates
    }

    /// Bytes of an hour's consensus, or of the difference to an earlier one.
    pub fn consensus(&mut self, from: Option<usize>, hour: usize) -> u64 {
        if let Some(known) = self.consensus_bytes.get(&(from, hour)) {
            return *known;
        }
        let (whole, difference) = (
            self.text(hour),
            from.and_then(|from| self.difference(from, hour)),
        );
        let shorter = difference.filter(|made| made.len() < whole.len());
        let bytes = deflated(shorter.as_deref().unwrap_or(whole));
        self.consensus_bytes.insert((from, hour), bytes);
        bytes
    }

    fn difference(&self, from: usize, hour: usize) -> Option<String> {
        let apart = hour.checked_sub(from)?;
        let known = (1..=EARLIER).contains(&apart);
        let (earlier, later) = (
            self.hours.get(from).filter(|_| known)?,
            self.hours.get(hour)?,
        );
        ConsensusDiff::make((&earlier.from, &earlier.text), (&later.to, &later.text))
    }

    /// Bytes of the microdescriptors of an hour's relays that an earlier hour's consensus does not name, asked for in batches.
    pub fn microdescriptors_since(&mut self, from: Option<usize>, hour: usize) -> u64 {
        if let Some(known) = self.microdescriptor_bytes.get(&(from, hour)) {
            return *known;
        }
        let earlier = from.and_then(|from| self.hours.get(from));
        let is_new = |digest: &[u8; 32]| {
            earlier.is_none_or(|earlier| !earlier.microdescriptors.contains_key(digest))
        };
        let given = self.hours.get(hour).map(|given| &given.microdescriptors);
        let wanted = given
            .into_iter()
            .flatten()
            .filter(|(digest, _)| is_new(digest));
        let wanted: Vec<_> = wanted.map(|(_, text)| text.as_str()).collect();
        let bytes = wanted
            .chunks(BATCH)
            .map(|batch| deflated(&batch.concat()))
            .sum();
        self.microdescriptor_bytes.insert((from, hour), bytes);
        bytes
    }
}

impl Given {
    fn made(hour: usize, listed: &[Listed], population: &Population, settings: &Settings) -> Self {
        let mut microdescriptors = BTreeMap::new();
        let mut relays = Vec::with_capacity(listed.len());
        for one in listed {
            let flags = population.relays.get(one.relay);
            let flags = flags.map(|relay| relay.member.flags).unwrap_or_default();
            let described = microdescriptor(one, flags, settings.seed);
            let digest = sha256(described.as_bytes());
            let identity = numbers::<20>(settings.seed, "rsa identity", one.relay);
            let (id, digest_text) = (
                STANDARD_NO_PAD.encode(identity),
                STANDARD_NO_PAD.encode(digest),
            );
            let Named {
                nickname,
                v4,
                v6,
                port,
            } = Named::of(one.relay, settings.seed);
            let mut text = format!("r {nickname} {id} 2038-01-01 00:00:00 {v4} {port} 0\n");
            if let Some(v6) = v6 {
                let _written = writeln!(text, "a [{v6}]:{port}");
            }
            let (named, weight) = (flag_names(flags, one.stable), one.measured);
            let _written = write!(
                text,
                "m {digest_text}\ns {named}\n{PROTOCOLS}w Bandwidth={weight}\n"
            );
            relays.push((identity, text));
            microdescriptors.insert(digest, described);
        }
        relays.sort();
        let mut text = head(hour, settings);
        relays.iter().for_each(|(_, relay)| text.push_str(relay));
        text.push_str(FOOTER);
        text.push_str("directory-signature ");
        let from = sha3_256(&[text.as_bytes()]);
        sign(hour, settings, &mut text);
        Self {
            from,
            to: sha3_256(&[text.as_bytes()]),
            text,
            microdescriptors,
        }
    }
}

/// Bytes of it in the format of zlib, as caches of ours compress it.
fn deflated(text: &str) -> u64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let written = encoder.write_all(text.as_bytes());
    let bytes = written.and_then(|()| encoder.finish()).unwrap_or_default();
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Numbers at random, the same for the same.
fn numbers<const N: usize>(seed: u64, purpose: &str, number: usize) -> [u8; N] {
    let mut random = Random::new(seed, purpose, number);
    let mut bytes = [0; N];
    for part in bytes.chunks_mut(32) {
        for (to, from) in part.iter_mut().zip(random.bytes()) {
            *to = from;
        }
    }
    bytes
}

fn put_object(label: &str, bytes: &[u8], text: &mut String) {
    let _written = writeln!(text, "-----BEGIN {label}-----");
    for line in STANDARD.encode(bytes).as_bytes().chunks(LINE) {
        text.extend(line.iter().map(|byte| char::from(*byte)));
        text.push('\n');
    }
    let _written = writeln!(text, "-----END {label}-----");
}

fn microdescriptor(listed: &Listed, flags: Flags, seed: u64) -> String {
    let purpose = format!("onion key {}", listed.onion);
    let mut text = "onion-key\n".to_owned();
    let rsa = numbers::<RSA_KEY>(seed, &format!("rsa {purpose}"), listed.relay);
    put_object("RSA PUBLIC KEY", &rsa, &mut text);
    let ntor = STANDARD_NO_PAD.encode(numbers::<32>(seed, &purpose, listed.relay));
    let _written = writeln!(text, "ntor-onion-key {ntor}");
    if flags.has(Flags::EXIT) {
        text.push_str("p accept 20-24,43,53,79-81,88,110,143,194,220,389,443,464-465,531,543-544,554,563,587,636,706,749,853,873,902-904\n");
    }
    let identity = STANDARD_NO_PAD.encode(numbers::<32>(seed, "identity", listed.relay));
    let _written = writeln!(text, "id ed25519 {identity}");
    text
}

fn flag_names(flags: Flags, stable: bool) -> String {
    let names = [
        ("BadExit", flags.has(Flags::BAD_EXIT)),
        ("Exit", flags.has(Flags::EXIT)),
        ("Fast", flags.has(Flags::FAST)),
        ("Guard", flags.has(Flags::GUARD)),
        ("HSDir", flags.has(Flags::HS_DIR)),
        ("Running", true),
        ("Stable", stable),
        ("V2Dir", flags.has(Flags::V2_DIR)),
        ("Valid", true),
    ];
    let names = names.into_iter().filter(|(_, has)| *has);
    names.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

fn fingerprint(settings: &Settings, purpose: &str, authority: usize) -> String {
    let bytes = numbers::<20>(settings.seed, purpose, authority);
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

fn head(hour: usize, settings: &Settings) -> String {
    let lifetime = lifetime(hour);
    let (after, fresh, until) = (
        date(lifetime.valid_after),
        date(lifetime.fresh_until),
        date(lifetime.valid_until),
    );
    let mut text =
        format!("{HEAD}valid-after {after}\nfresh-until {fresh}\nvalid-until {until}\n{VERSIONS}");
    for authority in 0..settings.authorities {
        let identity = fingerprint(settings, "authority's identity", authority);
        let vote = fingerprint(settings, &format!("vote {hour}"), authority);
        let _written = write!(
            text,
            "dir-source authority{authority} {identity} 198.51.100.{authority} 198.51.100.{authority} 80 443\n\
             contact operator of authority{authority} <tor@example.org>\nvote-digest {vote}\n"
        );
    }
    text
}

/// Puts the signatures behind the first's keyword.
fn sign(hour: usize, settings: &Settings, text: &mut String) {
    for authority in 0..settings.authorities {
        if authority > 0 {
            text.push_str("directory-signature ");
        }
        let identity = fingerprint(settings, "authority's identity", authority);
        let key = fingerprint(settings, "authority's key", authority);
        let _written = writeln!(text, "sha256 {identity} {key}");
        let signature =
            numbers::<SIGNATURE>(settings.seed, &format!("signature {hour}"), authority);
        put_object("SIGNATURE", &signature, text);
    }
}

#[cfg(test)]
mod tests {
    use hoplite_wire::tor::{Consensus, Microdescriptor};

    use super::*;
    use crate::directory::{SYNTHETIC, population::sample, valid_after};

    fn made() -> (Population, Consensuses) {
        let settings = Settings {
            relays: 60,
            hours: 4,
            ..Settings::default()
        };
        let members = sample(SYNTHETIC, settings.relays, settings.seed).expect("read");
        let population = Population::over(&members, &settings);
        let made = Consensuses::made(&population, &settings);
        (population, made)
    }

    #[test]
    fn what_is_written_is_read_as_tors_and_each_relay_is_described() {
        let (population, made) = made();
        for hour in 0..4 {
            let consensus = Consensus::parse(made.text(hour)).expect("a consensus");
            assert_eq!(consensus.routers.len(), 60);
            assert_eq!(consensus.signatures.len(), Settings::default().authorities);
            assert_eq!(consensus.valid_after, valid_after(hour));
            let described = made.microdescriptors(hour);
            let described = Microdescriptor::parse_all(&described).expect("microdescriptors");
            let digests: Vec<_> = described
                .iter()
                .map(|one| sha256(one.text.as_bytes()))
                .collect();
            assert!(
                consensus
                    .routers
                    .iter()
                    .all(|one| digests.contains(&one.digest))
            );
            let weights = consensus
                .routers
                .iter()
                .map(|one| one.bandwidth)
                .sum::<u64>();
            let listed = population.hours[hour]
                .iter()
                .map(|one| one.measured)
                .sum::<u64>();
            assert_eq!(weights, listed);
        }
    }

    #[test]
    fn differences_make_the_later_consensus_and_are_told_only_where_they_are_shorter() {
        let (_, mut made) = made();
        let text = made.difference(0, 3).expect("made");
        let read = ConsensusDiff::parse(&text).expect("read");
        assert_eq!(read.apply(made.text(0)).as_deref(), Ok(made.text(3)));
        assert!(made.difference(3, 3).is_none());
        let (whole, told) = (made.consensus(None, 3), made.consensus(Some(0), 3));
        assert!(told < whole / 2, "{told} of {whole}");
        assert_eq!(made.consensus(Some(3), 3), whole);
        let (all, new) = (
            made.microdescriptors_since(None, 3),
            made.microdescriptors_since(Some(0), 3),
        );
        assert!(new < all / 4, "{new} of {all}");
        assert_eq!(made.microdescriptors_since(Some(3), 3), 0);
    }
}
