//! A figure as a list of shapes: drawn once, written as SVG (`svg`) and as PNG (`png`). Lengths are in CSS pixels, the origin is top left.

use std::sync::OnceLock;

use plotters::style::{FontDesc, FontFamily, FontStyle, register_font};

/// The font's name for plotters.
pub(super) const FONT: &str = "lab";

/// What a figure is made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scene {
    /// Width.
    pub(super) width: f64,
    /// Height.
    pub(super) height: f64,
    /// Stands above a figure that is a file, and is read to those who cannot see it; the page has a heading instead.
    pub(super) title: String,
    /// How much room the title takes.
    pub(super) head: f64,
    /// From back to front.
    pub(super) shapes: Vec<Shape>,
}

/// One mark.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// A line through points.
    Line {
        points: Vec<(f64, f64)>,
        paint: Paint,
        width: f64,
        dash: Dash,
    },
    /// A filled area.
    Area {
        points: Vec<(f64, f64)>,
        paint: Paint,
        opacity: f64,
        hint: String,
    },
    /// A filled disc with a thin edge of the background's colour.
    Dot {
        at: (f64, f64),
        radius: f64,
        paint: Paint,
        opacity: f64,
        hint: String,
    },
    /// A line of text.
    Text {
        at: (f64, f64),
        text: String,
        size: f64,
        paint: Paint,
        anchor: Anchor,
        bold: bool,
        /// Turned to read upwards.
        upright: bool,
    },
}

/// A colour by its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    /// Text and axes.
    Ink,
    /// Less important text.
    Muted,
    /// Lines of the grid.
    Grid,
    /// The background.
    Paper,
    /// A subject's.
    Series(usize),
}

/// How a line is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dash {
    Solid,
    Dashed,
    Dotted,
    Mixed,
}

/// Which part of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito, 2008; yellow and black are left out).
pub(super) const LIGHT: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#b8568f", "#b07900", "#4a9bd1",
];

/// The same on a dark page.
pub(super) const DARK: [&str; 6] = [
    "#4fb3ea", "#ff8a3d", "#2fcf9f", "#e39cc6", "#e9b23c", "#9cd3f5",
];

impl Paint {
    /// The light page's colour.
    pub(super) fn light(self) -> &'static str {
        match self {
            Self::Ink => "#1d2328",
            Self::Muted => "#5b6670",
            Self::Grid => "#e3e7ea",
            Self::Paper => "#ffffff",
            Self::Series(number) => LIGHT.get(number % LIGHT.len()).unwrap_or(&"#000000"),
        }
    }

    /// The name of the page's variable.
    pub(super) fn variable(self) -> String {
        match self {
            Self::Ink => "ink".into(),
            Self::Muted => "muted".into(),
            Self::Grid => "grid".into(),
            Self::Paper => "card".into(),
            Self::Series(number) => format!("s{}", number % LIGHT.len()),
        }
    }
}

impl Dash {
    /// Lines of a series differ in more than colour.
    pub(super) fn of(series: usize) -> Self {
        match series % 4 {
            0 => Self::Solid,
            1 => Self::Dashed,
            2 => Self::Dotted,
            _ => Self::Mixed,
        }
    }

    /// Lengths of strokes and gaps, in turn.
    pub(super) fn pattern(self) -> &'static [f64] {
        match self {
            Self::Solid => &[],
            Self::Dashed => &[7.0, 4.0],
            Self::Dotted => &[2.0, 3.0],
            Self::Mixed => &[9.0, 3.0, 2.0, 3.0],
        }
    }
}

impl Scene {
    pub(super) fn new(width: f64, head: f64, title: impl Into<String>) -> Self {
        Self {
            width,
            height: head,
            title: title.into(),
            head,
            shapes: Vec::new(),
        }
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], paint: Paint, width: f64, dash: Dash) {
        self.shapes.push(Shape::Line {
            points: points.to_vec(),
            paint,
            width,
            dash,
        });
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], paint: Paint, opacity: f64, hint: &str) {
        self.shapes.push(Shape::Area {
            points: points.to_vec(),
            paint,
            opacity,
            hint: hint.to_owned(),
        });
    }

    pub(super) fn dot(&mut self, at: (f64, f64), radius: f64, paint: Paint, hint: &str) {
        self.shapes.push(Shape::Dot {
            at,
            radius,
            paint,
            opacity: 1.0,
            hint: hint.to_owned(),
        });
    }

    /// A dot that others shine through.
    pub(super) fn faint_dot(&mut self, at: (f64, f64), radius: f64, paint: Paint, hint: &str) {
        self.shapes.push(Shape::Dot {
            at,
            radius,
            paint,
            opacity: 0.55,
            hint: hint.to_owned(),
        });
    }

    pub(super) fn text(
        &mut self,
        at: (f64, f64),
        text: &str,
        size: f64,
        paint: Paint,
        anchor: Anchor,
    ) {
        self.shapes.push(Shape::Text {
            at,
            text: text.to_owned(),
            size,
            paint,
            anchor,
            bold: false,
            upright: false,
        });
    }

    /// The title as a shape, for a file.
    pub(super) fn titled(&self) -> Option<Shape> {
        (self.head > 0.0).then(|| Shape::Text {
            at: (12.0, 21.0),
            text: fit(&self.title, 14.0, self.width - 24.0),
            size: 14.0,
            paint: Paint::Ink,
            anchor: Anchor::Start,
            bold: true,
            upright: false,
        })
    }

    pub(super) fn bold(&mut self, at: (f64, f64), text: &str, size: f64) {
        self.shapes.push(Shape::Text {
            at,
            text: text.to_owned(),
            size,
            paint: Paint::Ink,
            anchor: Anchor::Start,
            bold: true,
            upright: false,
        });
    }

    pub(super) fn upright(&mut self, at: (f64, f64), text: &str, size: f64) {
        self.shapes.push(Shape::Text {
            at,
            text: text.to_owned(),
            size,
            paint: Paint::Muted,
            anchor: Anchor::Middle,
            bold: false,
            upright: true,
        });
    }
}

/// How wide a text is. The font is wider than most, so a page's own font fits too.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let font = font(size, false);
    let trailing = text.len() - text.trim_end().len();
    let measured = font.box_size(text).map(|(wide, _)| f64::from(wide));
    let guessed = || 0.6 * size * text.chars().count() as f64;
    measured.unwrap_or_else(|_| guessed()) + trailing as f64 * 0.32 * size
}

/// A text that is not wider than that, cut at its end if it must be.
pub(super) fn fit(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_owned();
    }
    let mut kept: Vec<char> = text.chars().collect();
    while kept.pop().is_some() {
        let short: String = kept.iter().collect::<String>() + "…";
        if width(&short, size) <= most {
            return short;
        }
    }
    String::new()
}

/// DejaVu Sans, which every copy of the program brings along.
pub(super) fn font(size: f64, bold: bool) -> FontDesc<'static> {
    static READY: OnceLock<bool> = OnceLock::new();
    READY.get_or_init(|| {
        let regular = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
        let bold = register_font(FONT, FontStyle::Bold, dejavu::sans::bold());
        regular.is_ok() && bold.is_ok()
    });
    let style = if bold {
        FontStyle::Bold
    } else {
        FontStyle::Normal
    };
    FontDesc::new(FontFamily::Name(FONT), size, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_width_and_a_long_one_is_cut_to_fit() {
        assert!(width("goodput", 12.0) > width("good", 12.0));
        assert!(width("goodput", 12.0) < 100.0);
        let cut = fit("a label that is far too long for its place", 12.0, 80.0);
        assert!(cut.ends_with('…') && width(&cut, 12.0) <= 80.0, "{cut}");
        assert_eq!(fit("short", 12.0, 80.0), "short");
    }
}
