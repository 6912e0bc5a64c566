//! The region that the first relay of a path says its client is in, and what the last one is shown of it.
//! The field is `wire::region`'s. Nobody between the two hears of it.

use hoplite_wire::{
    RequestHead, ResponseHead,
    region::{FIELD, Region, Shown, Zone},
};
use parking_lot::Mutex;
use serde::Deserialize;

/// What a client shows the last relay of where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownRegion {
    /// Nothing.
    #[default]
    None,
    /// Its country, and its time zone if it is configured.
    Country,
    /// Its region.
    Keep,
}

/// What the first relay said last. Nothing is kept of what it said before.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Option<Region>>);

impl Told {
    /// Takes what the first relay answers. A time zone it does not know.
    pub(crate) fn hear(&self, answer: &ResponseHead) {
        let told = answer.header(FIELD).and_then(Shown::read);
        *self.0.lock() = told.map(|told| told.region);
    }

    /// A request to the last relay, with as much as `how` allows.
    pub(crate) fn show(
        &self,
        how: ShownRegion,
        zone: Option<&Zone>,
        head: RequestHead,
    ) -> RequestHead {
        let Some(region) = *self.0.lock() else {
            return head;
        };
        let shown = match how {
            ShownRegion::None => return head,
            ShownRegion::Country => Shown {
                region: region.country(),
                zone: zone.cloned(),
            },
            ShownRegion::Keep => Shown { region, zone: None },
        };
        head.with(FIELD, shown.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_relay_is_shown_what_the_user_chose() {
        let told = Told::default();
        let zone: Zone = "Europe/Berlin".parse().expect("a zone");
        let shown = |told: &Told, how, zone| {
            let head = told.show(how, zone, RequestHead::connect("target:1"));
            let field = head.header(FIELD);
            field.map(|value| String::from_utf8_lossy(value).into_owned())
        };
        assert_eq!(
            shown(&told, ShownRegion::Keep, Some(&zone)),
            None,
            "nothing is known"
        );
        told.hear(&ResponseHead::new(200).with(FIELD, "DE-BE;zone=Europe/Berlin"));
        for (how, zone, expected) in [
            (ShownRegion::None, Some(&zone), None),
            (ShownRegion::Country, None, Some("DE")),
            (
                ShownRegion::Country,
                Some(&zone),
                Some("DE;zone=Europe/Berlin"),
            ),
            (ShownRegion::Keep, Some(&zone), Some("DE-BE")),
        ] {
            assert_eq!(shown(&told, how, zone).as_deref(), expected, "{how:?}");
        }
        told.hear(&ResponseHead::new(200));
        assert_eq!(shown(&told, ShownRegion::Keep, None), None, "it moved");
    }
}
