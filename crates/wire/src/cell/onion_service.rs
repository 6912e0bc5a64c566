//! What services, clients and relays tell each other about onion services of version 3, as far as a relay reads it: how a service has itself
//! introduced, a client introduces itself, and both meet at a relay. rend-spec-v3, "The introduction protocol", "The rendezvous protocol".
//!
//! Whatever client and service encrypt for each other is bytes here.

use bytes::BufMut;

use super::{Input, Malformed};

/// What a client chooses for a service to find it by at the rendezvous point.
pub const COOKIE: usize = 20;

/// The only kind of key by which services are introduced: Ed25519.
const ED25519: u8 = 2;
/// The extension of ESTABLISH_INTRO with the rates of INTRODUCE2.
const RATES: u8 = 1;
/// Its parameters.
const PER_SECOND: u8 = 1;
const BURST: u8 = 2;
/// More than this no parameter may be.
const MOST: u64 = i32::MAX as u64;

numbers! {
    /// What comes of an INTRODUCE1. rend-spec-v3, "INTRODUCE_ACK cell format".
    pub struct IntroduceStatus(u16) {
        /// It was passed on.
        SUCCESS = 0,
        /// No service is introduced here by that key.
        UNKNOWN = 1,
        /// It cannot be read.
        MALFORMED = 2,
        /// It cannot be passed on: the service does not take more.
        CANT_RELAY = 3,
    }
}

/// How many INTRODUCE2 a service wants at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntroductionRate {
    /// A second, in the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// ESTABLISH_INTRO: a service wants to be introduced here by this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishIntro<'a> {
    /// The key, an Ed25519 one that the service has for this relay alone.
    pub auth_key: [u8; 32],
    /// What the service wants at most; `None`: it leaves that to the relay.
    pub rate: Option<IntroductionRate>,
    /// Binds the message to its circuit: a MAC of `authenticated`.
    pub mac: [u8; 32],
    /// By the key, of a prefix and `signed`.
    pub signature: [u8; 64],
    /// All before the MAC.
    pub authenticated: &'a [u8],
    /// All before the signature's length.
    pub signed: &'a [u8],
}

impl<'a> EstablishIntro<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`], for a key of another kind, too.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "ESTABLISH_INTRO");
        let before = |input: &Input<'_>| {
            let at = data.len().saturating_sub(input.rest().len());
            data.get(..at).unwrap_or_default()
        };
        let auth_key = auth_key(&mut input)?;
        let mut rate = None;
        extensions(&mut input, |kind, value| {
            if kind == RATES {
                rate = read_rate(value)?;
            }
            Ok(())
        })?;
        let authenticated = before(&input);
        let mac = input.array()?;
        let signed = before(&input);
        let signature = input.counted_wide()?.try_into();
        let signature = signature.map_err(|_| input.malformed())?;
        Ok(Self {
            auth_key,
            rate,
            mac,
            signature,
            authenticated,
            signed,
        })
    }

    /// Writes all before the MAC: the MAC, and the signature behind its length of two bytes, follow.
    pub fn write_authenticated(
        auth_key: &[u8; 32],
        rate: Option<IntroductionRate>,
        out: &mut impl BufMut,
    ) {
        put_auth_key(auth_key, out);
        let Some(rate) = rate else {
            return out.put_u8(0);
        };
        out.put_slice(&[1, RATES, 19, 2]);
        for (kind, value) in [(PER_SECOND, rate.per_second), (BURST, rate.burst)] {
            out.put_u8(kind);
            out.put_u64(value.into());
        }
    }
}

/// `None` where it asks for nothing that makes sense: then the service "did not ask".
fn read_rate(value: &[u8]) -> Result<Option<IntroductionRate>, Malformed> {
    let mut input = Input::new(value, "ESTABLISH_INTRO");
    let (mut per_second, mut burst) = (0, 0);
    for _ in 0..input.u8()? {
        let kind = input.u8()?;
        let value = u64::from_be_bytes(input.array()?);
        let to = match kind {
            PER_SECOND => &mut per_second,
            BURST => &mut burst,
            _ => continue,
        };
        *to = u32::try_from(value.min(MOST)).map_err(|_| input.malformed())?;
    }
    let rate = IntroductionRate { per_second, burst };
    Ok((per_second > 0 && burst >= per_second).then_some(rate))
}

/// INTRODUCE1 and INTRODUCE2, which have one form: a client introduces itself to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduce<'a> {
    /// The key of the service at this introduction point.
    pub auth_key: [u8; 32],
    /// For the service.
    pub encrypted: &'a [u8],
}

impl<'a> Introduce<'a> {
    /// Reads it. Extensions of it that nobody knows are passed over.
    ///
    /// # Errors
    /// [`Malformed`], for the version before this one, too.
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "INTRODUCE1");
        if input.array::<20>()? != [0; 20] {
            return Err(input.malformed());
        }
        let auth_key = auth_key(&mut input)?;
        extensions(&mut input, |_, _| Ok(()))?;
        let encrypted = input.rest();
        if encrypted.is_empty() {
            return Err(input.malformed());
        }
        Ok(Self {
            auth_key,
            encrypted,
        })
    }

    /// Writes it, without extensions.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_bytes(0, 20);
        put_auth_key(&self.auth_key, out);
        out.put_u8(0);
        out.put_slice(self.encrypted);
    }
}

impl IntroduceStatus {
    /// Reads INTRODUCE_ACK. What stands behind the status is passed over.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        Input::new(data, "INTRODUCE_ACK").u16().map(Self)
    }

    /// Writes INTRODUCE_ACK.
    pub fn write(self, out: &mut impl BufMut) {
        out.put_u16(self.0);
        out.put_u8(0);
    }
}

/// RENDEZVOUS1: a service wants to be joined to the client that waits here by this cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous1<'a> {
    /// The client's.
    pub cookie: [u8; COOKIE],
    /// For the client: what RENDEZVOUS2 carries.
    pub handshake: &'a [u8],
}

impl<'a> Rendezvous1<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Input::new(data, "RENDEZVOUS1");
        Ok(Self {
            cookie: input.array()?,
            handshake: input.rest(),
        })
    }

    /// Writes it.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(&self.cookie);
        out.put_slice(self.handshake);
    }
}

/// Reads ESTABLISH_RENDEZVOUS: a client wants to be found here by this cookie.
///
/// # Errors
/// [`Malformed`].
pub fn establish_rendezvous(data: &[u8]) -> Result<[u8; COOKIE], Malformed> {
    let cookie = data.try_into();
    cookie.map_err(|_| Malformed("ESTABLISH_RENDEZVOUS"))
}

fn auth_key(input: &mut Input<'_>) -> Result<[u8; 32], Malformed> {
    if input.u8()? != ED25519 {
        return Err(input.malformed());
    }
    let key = input.counted_wide()?.try_into();
    key.map_err(|_| input.malformed())
}

fn put_auth_key(key: &[u8; 32], out: &mut impl BufMut) {
    out.put_slice(&[ED25519, 0, 32]);
    out.put_slice(key);
}

fn extensions(
    input: &mut Input<'_>,
    mut each: impl FnMut(u8, &[u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for _ in 0..input.u8()? {
        let kind = input.u8()?;
        each(kind, input.counted()?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: IntroductionRate = IntroductionRate {
        per_second: 25,
        burst: 200,
    };

    fn establish(rate: Option<IntroductionRate>) -> Vec<u8> {
        let mut out = Vec::new();
        EstablishIntro::write_authenticated(&[7; 32], rate, &mut out);
        out.extend([8; 32]);
        out.extend([0, 64]);
        out.extend([9; 64]);
        out
    }

    #[test]
    fn what_is_written_is_read_and_nothing_that_is_cut_off() {
        for rate in [None, Some(RATE)] {
            let bytes = establish(rate);
            let read = EstablishIntro::parse(&bytes).expect("reads");
            assert_eq!((read.auth_key, read.rate), ([7; 32], rate));
            assert_eq!((read.mac, read.signature), ([8; 32], [9; 64]));
            assert_eq!(read.authenticated.len() + 32, read.signed.len());
            assert_eq!(read.signed.len() + 66, bytes.len());
            for end in 0..bytes.len() {
                EstablishIntro::parse(&bytes[..end]).expect_err("cut off");
            }
        }
        let introduce = Introduce {
            auth_key: [1; 32],
            encrypted: b"x",
        };
        let mut bytes = Vec::new();
        introduce.write(&mut bytes);
        assert_eq!(Introduce::parse(&bytes), Ok(introduce));
        for end in 0..bytes.len() {
            Introduce::parse(&bytes[..end]).expect_err("cut off");
        }
    }

    #[test]
    fn rates_that_make_no_sense_are_none() {
        for (per_second, burst) in [(0, 0), (0, 5), (6, 5)] {
            let bytes = establish(Some(IntroductionRate { per_second, burst }));
            assert_eq!(EstablishIntro::parse(&bytes).expect("reads").rate, None);
        }
        let mut value = vec![3, 9];
        value.extend(7u64.to_be_bytes());
        for (kind, number) in [(PER_SECOND, u64::MAX), (BURST, u64::MAX)] {
            value.push(kind);
            value.extend(number.to_be_bytes());
        }
        let read = read_rate(&value).expect("reads").expect("rates");
        let most = (1 << 31) - 1;
        assert_eq!((read.per_second, read.burst), (most, most));
    }

    #[test]
    fn an_introduction_to_a_service_of_the_version_before_is_malformed() {
        let mut bytes = vec![1; 20];
        bytes.extend([ED25519, 0, 32]);
        bytes.extend([0; 40]);
        Introduce::parse(&bytes).expect_err("another version");
        Introduce::parse(&[0; 60]).expect_err("another kind of key");
    }
}
