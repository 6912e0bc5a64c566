//! An authority's key certificate: its identity, which does not change, vouches for the key that it signs with now.
//! dir-spec "Creating key certificates".

use super::{
    AUTHORITIES,
    items::{Item, Items, hex},
    time,
};
use crate::directory::Malformed;

/// A certificate, none of whose signatures has been checked by reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCertificate<'a> {
    /// What the certification is over.
    pub signed: &'a str,
    /// SHA-1 of the identity key, as it says itself.
    pub fingerprint: [u8; 20],
    /// From when it holds, in seconds since 1970.
    pub published: u64,
    /// Until when.
    pub expires: u64,
    /// The identity key (DER, PKCS #1).
    pub identity: Vec<u8>,
    /// The signing key (DER, PKCS #1).
    pub signing: Vec<u8>,
    /// By the signing key, over the SHA-1 of the identity key.
    pub cross: Vec<u8>,
    /// By the identity key, over the SHA-1 of `signed`.
    pub certification: Vec<u8>,
}

/// What was read so far of one.
#[derive(Default)]
struct Parts {
    start: usize,
    fingerprint: Option<[u8; 20]>,
    published: Option<u64>,
    expires: Option<u64>,
    identity: Option<Vec<u8>>,
    signing: Option<Vec<u8>>,
    cross: Option<Vec<u8>>,
}

impl<'a> KeyCertificate<'a> {
    /// Reads all that stand one behind the other.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse_all(text: &'a str) -> Result<Vec<Self>, Malformed> {
        let mut items = Items::of(text)?;
        let (mut found, mut parts) = (Vec::new(), None::<Parts>);
        while let Some(item) = items.next()? {
            if item.keyword == "dir-key-certificate-version" {
                if item.arguments.trim() != "3" || parts.is_some() {
                    return Err(items.wrong("no key certificate of version 3"));
                }
                parts = Some(Parts {
                    start: item.start,
                    ..Parts::default()
                });
                continue;
            }
            let Some(open) = parts.as_mut() else {
                return Err(items.wrong("no key certificate"));
            };
            if item.keyword != "dir-key-certification" {
                open.take(item, &items)?;
                continue;
            }
            let signed = items.until(open.start, item.body)?;
            let certification = item.octets(&items)?;
            let whole = parts.take().and_then(|it| it.whole(signed, certification));
            found.push(whole.ok_or_else(|| items.wrong("a key certificate lacks something"))?);
            if found.len() > AUTHORITIES {
                return Err(items.wrong("too many key certificates"));
            }
        }
        match parts {
            None => Ok(found),
            Some(_) => Err(items.wrong("a key certificate without end")),
        }
    }
}

impl Parts {
    fn take(&mut self, item: Item<'_>, items: &Items<'_>) -> Result<(), Malformed> {
        let wrong = items.wrong("key certificate");
        match item.keyword {
            "fingerprint" => self.fingerprint = Some(hex(item.arguments.trim()).ok_or(wrong)?),
            "dir-key-published" => {
                self.published = Some(time::seconds(item.arguments).ok_or(wrong)?);
            }
            "dir-key-expires" => self.expires = Some(time::seconds(item.arguments).ok_or(wrong)?),
            "dir-identity-key" => self.identity = Some(item.octets(items)?),
            "dir-signing-key" => self.signing = Some(item.octets(items)?),
            "dir-key-crosscert" => self.cross = Some(item.octets(items)?),
            _ => {}
        }
        Ok(())
    }

    fn whole(self, signed: &str, certification: Vec<u8>) -> Option<KeyCertificate<'_>> {
        Some(KeyCertificate {
            signed,
            fingerprint: self.fingerprint?,
            published: self.published?,
            expires: self.expires?,
            identity: self.identity?,
            signing: self.signing?,
            cross: self.cross?,
            certification,
        })
    }
}
