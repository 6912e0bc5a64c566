//! A descriptor: what a relay says of itself, signed by its key. Authorities gather them, lists contain them whole, so that an
//! authority can leave a relay out but not speak for it.

use std::{
    fmt::{self, Write},
    net::SocketAddr,
};

use super::{
    ADDRESSES, DESCRIPTOR, FAMILY, Key, Malformed, Ports, Signature, is_word,
    key::{decode, encode},
    lines::Lines,
};

/// What a relay does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Roles {
    /// It forwards to other relays: first or inner hop.
    pub ingress: bool,
    /// It connects to targets: last hop.
    pub egress: bool,
}

/// What a relay says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What it calls itself: a word of 1 to 64 characters, not unique.
    pub name: String,
    /// Its Ed25519 key: who it is.
    pub identity: Key,
    /// When it said so, in seconds since 1970.
    pub published: u64,
    /// Where it listens, the best first, 1 to 4.
    pub addresses: Vec<SocketAddr>,
    /// The SHA-256 of its TLS key, by which MASQUE clients know it.
    pub pin: Option<[u8; 32]>,
    /// Its ntor onion key, by which circuits are extended to it.
    pub onion: Option<[u8; 32]>,
    /// What it does.
    pub roles: Roles,
    /// Where it stands: a word of 1 to 32 characters.
    pub region: Option<String>,
    /// Who runs it: a word of 1 to 64 characters.
    pub operator: Option<String>,
    /// Relays of the same operator; it counts where they say so too. In order.
    pub family: Vec<Key>,
    /// What it can carry, in octets a second.
    pub bandwidth: u64,
    /// To which ports it connects; an egress has some, and nobody else.
    pub exit: Option<Ports>,
}

/// A descriptor with the signature of the relay's key, which has not been checked by reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedDescriptor {
    /// What it says.
    pub descriptor: Descriptor,
    /// Over [`Descriptor::text`].
    pub signature: Signature,
}

const HEAD: &str = "hoplite-descriptor 1";

impl Descriptor {
    /// What is signed.
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// Whether it can be written so that it is read back.
    ///
    /// # Errors
    /// What stands in the way, as reading it would say.
    pub fn check(&self) -> Result<(), Malformed> {
        let text = self.text();
        let mut lines = Lines::of(&text, DESCRIPTOR)?;
        let again = Self::read(&mut lines)?;
        match again == *self && lines.is_done() {
            true => Ok(()),
            false => Err(lines.wrong("it cannot be written")),
        }
    }

    fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        lines.exactly(HEAD, "no descriptor of version 1")?;
        let descriptor = Self {
            name: word(lines, "name", 64)?.ok_or_else(|| lines.wrong("name"))?,
            identity: lines.parsed("identity")?,
            published: lines.parsed("published")?,
            addresses: addresses(lines)?,
            pin: octets(lines, "pin", "sha256:")?,
            onion: octets(lines, "onion", "ntor:")?,
            roles: roles(lines)?,
            region: word(lines, "region", 32)?,
            operator: word(lines, "operator", 64)?,
            family: family(lines)?,
            bandwidth: lines.parsed("bandwidth")?,
            exit: exit(lines)?,
        };
        match descriptor.roles.egress == descriptor.exit.is_some() {
            true => Ok(descriptor),
            false => {
                Err(lines.wrong("an egress, and nobody else, says to which ports it connects"))
            }
        }
    }
}

fn word(
    lines: &mut Lines<'_>,
    keyword: &'static str,
    most: usize,
) -> Result<Option<String>, Malformed> {
    match lines.option(keyword) {
        Some(value) if !is_word(value, most) => Err(lines.wrong(keyword)),
        value => Ok(value.map(str::to_owned)),
    }
}

fn addresses(lines: &mut Lines<'_>) -> Result<Vec<SocketAddr>, Malformed> {
    let mut addresses = Vec::new();
    while let Some(text) = lines.option("address") {
        let address = text.parse().ok().filter(is_usable);
        let address = address.ok_or_else(|| lines.wrong("address"))?;
        if addresses.len() == ADDRESSES || addresses.contains(&address) {
            return Err(lines.wrong("too many addresses, or one of them twice"));
        }
        addresses.push(address);
    }
    match addresses.is_empty() {
        true => Err(lines.wrong("address")),
        false => Ok(addresses),
    }
}

/// An address that one can connect to, and can write in one way only.
fn is_usable(address: &SocketAddr) -> bool {
    let ip = address.ip();
    let scoped = matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0);
    address.port() != 0
        && ip == ip.to_canonical()
        && !scoped
        && !ip.is_unspecified()
        && !ip.is_multicast()
}

fn octets(
    lines: &mut Lines<'_>,
    keyword: &'static str,
    prefix: &str,
) -> Result<Option<[u8; 32]>, Malformed> {
    let Some(value) = lines.option(keyword) else {
        return Ok(None);
    };
    let octets = value.strip_prefix(prefix).and_then(decode);
    octets.map(Some).ok_or_else(|| lines.wrong(keyword))
}

fn roles(lines: &mut Lines<'_>) -> Result<Roles, Malformed> {
    let (ingress, egress) = match lines.value("roles")? {
        "ingress" => (true, false),
        "egress" => (false, true),
        "ingress egress" => (true, true),
        _ => return Err(lines.wrong("roles")),
    };
    Ok(Roles { ingress, egress })
}

fn family(lines: &mut Lines<'_>) -> Result<Vec<Key>, Malformed> {
    let Some(value) = lines.option("family") else {
        return Ok(Vec::new());
    };
    let keys = value.split(' ').take(FAMILY + 1).map(str::parse);
    let keys: Vec<Key> = keys
        .collect::<Result<_, _>>()
        .map_err(|_| lines.wrong("family"))?;
    match keys.len() <= FAMILY && keys.is_sorted_by(|a, b| a < b) {
        true => Ok(keys),
        false => Err(lines.wrong("too large a family, or not in order")),
    }
}

fn exit(lines: &mut Lines<'_>) -> Result<Option<Ports>, Malformed> {
    let Some(value) = lines.option("exit") else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|()| lines.wrong("exit"))
}

impl SignedDescriptor {
    /// Reads one, and nothing but it.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut lines = Lines::of(text, DESCRIPTOR)?;
        let signed = Self::read(&mut lines)?;
        match lines.is_done() && signed.to_string() == text {
            true => Ok(signed),
            false => Err(lines.wrong("more than a descriptor, or not as it would be written")),
        }
    }

    pub(super) fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            descriptor: Descriptor::read(lines)?,
            signature: lines.parsed("signature")?,
        })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\nname {}\nidentity {}", self.name, self.identity)?;
        writeln!(f, "published {}", self.published)?;
        for address in &self.addresses {
            writeln!(f, "address {address}")?;
        }
        if let Some(pin) = &self.pin {
            writeln!(f, "pin sha256:{}", encode(pin))?;
        }
        if let Some(onion) = &self.onion {
            writeln!(f, "onion ntor:{}", encode(onion))?;
        }
        writeln!(f, "roles {}", self.roles)?;
        if let Some(region) = &self.region {
            writeln!(f, "region {region}")?;
        }
        if let Some(operator) = &self.operator {
            writeln!(f, "operator {operator}")?;
        }
        if !self.family.is_empty() {
            f.write_str("family")?;
            self.family.iter().try_for_each(|key| write!(f, " {key}"))?;
            f.write_char('\n')?;
        }
        writeln!(f, "bandwidth {}", self.bandwidth)?;
        match &self.exit {
            Some(ports) => writeln!(f, "exit {ports}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.ingress, self.egress) {
            (true, true) => "ingress egress",
            (true, false) => "ingress",
            (false, true) => "egress",
            (false, false) => "",
        })
    }
}

impl fmt::Display for SignedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}signature {}", self.descriptor, self.signature)
    }
}
