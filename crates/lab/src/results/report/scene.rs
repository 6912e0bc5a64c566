//! A figure as a list of shapes, and what all figures have: axes, the frame of a plot, a legend. Lengths are in CSS pixels, the origin is top left.

use std::sync::OnceLock;

use plotters::style::{FontDesc, FontFamily, FontStyle, register_font};

use super::metric::{Unit, digits};

/// The font's name for plotters.
const FONT: &str = "lab";

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
    Text(Label),
}

/// A line of text and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Label {
    pub(super) at: (f64, f64),
    pub(super) text: String,
    pub(super) size: f64,
    pub(super) paint: Paint,
    pub(super) anchor: Anchor,
    pub(super) bold: bool,
    /// Turned to read upwards.
    pub(super) upright: bool,
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

/// Their likes on a dark page.
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

    /// A dot; others shine through one that is not opaque.
    pub(super) fn dot(
        &mut self,
        at: (f64, f64),
        (radius, opacity): (f64, f64),
        paint: Paint,
        hint: &str,
    ) {
        self.shapes.push(Shape::Dot {
            at,
            radius,
            paint,
            opacity,
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
        let label = Label::new(at, text, size, paint, anchor);
        self.shapes.push(Shape::Text(label));
    }

    pub(super) fn bold(&mut self, at: (f64, f64), text: &str, size: f64) {
        let label = Label::new(at, text, size, Paint::Ink, Anchor::Start);
        self.shapes.push(Shape::Text(Label {
            bold: true,
            ..label
        }));
    }

    pub(super) fn upright(&mut self, at: (f64, f64), text: &str, size: f64) {
        let label = Label::new(at, text, size, Paint::Muted, Anchor::Middle);
        self.shapes.push(Shape::Text(Label {
            upright: true,
            ..label
        }));
    }

    /// The title as a shape, for a file.
    pub(super) fn titled(&self) -> Option<Shape> {
        let title = fit(&self.title, 14.0, self.width - 24.0);
        let label = Label::new((12.0, 21.0), &title, 14.0, Paint::Ink, Anchor::Start);
        (self.head > 0.0).then_some(Shape::Text(Label {
            bold: true,
            ..label
        }))
    }
}

impl Label {
    fn new(at: (f64, f64), text: &str, size: f64, paint: Paint, anchor: Anchor) -> Self {
        Self {
            at,
            text: text.to_owned(),
            size,
            paint,
            anchor,
            bold: false,
            upright: false,
        }
    }
}

/// A size is an em in SVG, and for plotters the height from ascender to descender: DejaVu's are 1.164 em apart.
const EM: f64 = 1.164;

/// How wide a text is. The font is wider than most, so a page's own font fits too.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let font = font(size, false);
    let trailing = text.len() - text.trim_end().len();
    let measured = font.box_size(text).map(|(wide, _)| f64::from(wide) * EM);
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

// Axes: their range, their marks, linear or logarithmic; and the frame of a plot.

/// Size of the text at the marks.
pub(super) const SMALL: f64 = 11.0;

/// A range of values along a side.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
    unit: Unit,
    label: String,
}

impl Axis {
    /// Holds all values. Logarithmic if they are positive and span more than a factor of 20; otherwise it begins at nought
    /// if that costs less than half of it.
    pub(super) fn over(values: impl Iterator<Item = f64>, unit: Unit, label: &str) -> Self {
        let mut axis = Self::bare(values, unit, label);
        if axis.low > 0.0 && axis.high / axis.low > 20.0 {
            (axis.low, axis.high, axis.log) = (axis.low / 1.15, axis.high * 1.15, true);
            return axis;
        }
        if axis.low >= 0.0 && axis.low <= axis.high * 0.5 {
            axis.low = 0.0;
        }
        axis.with_air()
    }

    /// From the first to the last value, never logarithmic.
    pub(super) fn linear(values: impl Iterator<Item = f64>, unit: Unit, label: &str) -> Self {
        Self::bare(values, unit, label).with_air()
    }

    fn bare(values: impl Iterator<Item = f64>, unit: Unit, label: &str) -> Self {
        let told = values.map(|value| value * unit.factor);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in told.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let label = label.to_owned();
        Self {
            low,
            high,
            log: false,
            unit,
            label,
        }
    }

    /// Some air around the values, but none below nought.
    fn with_air(mut self) -> Self {
        let span = self.high - self.low;
        let air = if span > 0.0 {
            span * 0.05
        } else {
            (self.high.abs() * 0.1).max(1e-9)
        };
        let least = if self.low >= 0.0 {
            0.0
        } else {
            f64::NEG_INFINITY
        };
        (self.low, self.high) = ((self.low - air).max(least), self.high + air);
        self
    }

    /// From 0 to 100 %.
    pub(super) fn shares(label: &str) -> Self {
        Self {
            low: 0.0,
            high: 100.0,
            log: false,
            unit: Unit::new("%", 100.0),
            label: label.to_owned(),
        }
    }

    /// Where a stored value stands, 0..1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let told = (value * self.unit.factor).clamp(self.low, self.high);
        if self.log {
            return (told / self.low).ln() / (self.high / self.low).ln();
        }
        (told - self.low) / (self.high - self.low)
    }

    /// Its marks: place (0..1) and text.
    pub(super) fn ticks(&self, about: usize) -> Vec<(f64, String)> {
        let values = if self.log {
            self.decades(about)
        } else {
            self.steps(about)
        };
        let place = |told: &f64| (self.place(told / self.unit.factor), tick(*told));
        values.iter().map(place).collect()
    }

    fn steps(&self, about: usize) -> Vec<f64> {
        let step = nice((self.high - self.low) / about.max(1) as f64);
        let first = (self.low / step - 1e-9).ceil();
        let value = |count: u32| (first + f64::from(count)) * step;
        (0..40)
            .map(value)
            .take_while(|value| *value <= self.high + step * 1e-6)
            .collect()
    }

    fn decades(&self, about: usize) -> Vec<f64> {
        let all = |of: &[f64]| {
            let mut marks = Vec::new();
            let mut decade = 10_f64.powf(self.low.log10().floor());
            while decade <= self.high && marks.len() < 100 {
                marks.extend(of.iter().map(|times| times * decade));
                decade *= 10.0;
            }
            marks.retain(|mark| (self.low..=self.high).contains(mark));
            marks
        };
        let fine = all(&[1.0, 2.0, 5.0]);
        if fine.len() <= about + 2 {
            fine
        } else {
            all(&[1.0])
        }
    }

    /// What stands beside it.
    pub(super) fn title(&self) -> String {
        let scale = if self.log { ", log scale" } else { "" };
        match (self.unit.name, self.label.is_empty()) {
            ("", _) => format!("{}{scale}", self.label),
            (unit, true) => format!("{unit}{scale}"),
            (unit, false) => format!("{} ({unit}{scale})", self.label),
        }
    }
}

/// 1, 2 or 5 times a power of ten, at least as large.
fn nice(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|times| times * power >= step * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

/// A mark's text: no more digits than it needs.
fn tick(told: f64) -> String {
    if told.abs() >= 10_000.0 || told == 0.0 {
        return digits(told);
    }
    let rounded = format!("{told:.6}");
    let short = rounded.trim_end_matches('0').trim_end_matches('.');
    short.replace('-', "−")
}

/// The plot's area with its two axes.
#[derive(Clone, Debug)]
pub(super) struct PlotArea {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

impl PlotArea {
    /// Where a pair of stored values stands.
    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (
            self.across(x),
            self.top + self.height * (1.0 - self.y.place(y)),
        )
    }

    /// Where a value of the horizontal axis stands.
    pub(super) fn across(&self, x: f64) -> f64 {
        self.left + self.width * self.x.place(x)
    }

    /// Grid, marks and titles of both axes.
    pub(super) fn draw(&self, scene: &mut Scene) {
        self.draw_x(scene);
        self.draw_y(scene);
    }

    /// Grid, marks and title of the vertical axis.
    pub(super) fn draw_y(&self, scene: &mut Scene) {
        let (left, right) = (self.left, self.left + self.width);
        let mut widest = 0.0_f64;
        for (place, text) in self.y.ticks(5) {
            let y = self.top + self.height * (1.0 - place);
            scene.line(&[(left, y), (right, y)], Paint::Grid, 1.0, Dash::Solid);
            scene.text(
                (left - 7.0, y + 4.0),
                &text,
                SMALL,
                Paint::Muted,
                Anchor::End,
            );
            widest = widest.max(width(&text, SMALL));
        }
        let middle = self.top + self.height / 2.0;
        scene.upright((left - 16.0 - widest, middle), &self.y.title(), SMALL);
    }

    /// Grid, marks and title of the horizontal axis.
    pub(super) fn draw_x(&self, scene: &mut Scene) {
        let (left, bottom) = (self.left, self.top + self.height);
        let about = marks(self.width);
        for (place, text) in self.x.ticks(about) {
            let x = left + self.width * place;
            scene.line(&[(x, self.top), (x, bottom)], Paint::Grid, 1.0, Dash::Solid);
            scene.text(
                (x, bottom + 16.0),
                &text,
                SMALL,
                Paint::Muted,
                Anchor::Middle,
            );
        }
        let middle = left + self.width / 2.0;
        scene.text(
            (middle, bottom + 34.0),
            &self.x.title(),
            SMALL,
            Paint::Muted,
            Anchor::Middle,
        );
    }
}

/// How many marks have room.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut to the range of the integer: some marks on a few hundred pixels"
)]
fn marks(width: f64) -> usize {
    (width / 80.0).clamp(3.0, 10.0) as usize
}

/// A key of colours: line by line within a width. Answers how high it is.
pub(super) fn legend(
    scene: &mut Scene,
    (left, top): (f64, f64),
    most: f64,
    names: &[(String, usize)],
) -> f64 {
    let (mut x, mut y) = (left, top);
    for (name, series) in names {
        let wide = 28.0 + width(name, SMALL) + 16.0;
        if x > left && x + wide > left + most {
            (x, y) = (left, y + 17.0);
        }
        let paint = Paint::Series(*series);
        scene.line(
            &[(x, y - 4.0), (x + 22.0, y - 4.0)],
            paint,
            2.4,
            Dash::of(*series),
        );
        scene.text((x + 28.0, y), name, SMALL, Paint::Ink, Anchor::Start);
        x += wide;
    }
    y - top + 17.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_has_a_width_and_a_long_one_is_cut_to_fit() {
        assert!(width("goodput", 12.0) > width("good", 12.0));
        assert!(width("goodput", 12.0) < 100.0);
        let cut = fit("a label that is far too long for its place", 12.0, 80.0);
        assert!(cut.ends_with('…') && width(&cut, 12.0) <= 80.0, "{cut}");
        assert_eq!(fit("short", 12.0, 80.0), "short");
    }

    fn plain(values: &[f64]) -> Axis {
        Axis::over(values.iter().copied(), Unit::new("", 1.0), "")
    }

    #[test]
    fn marks_are_round_numbers_and_values_near_nought_begin_there() {
        let axis = plain(&[3.0, 47.0]);
        let texts: Vec<String> = axis.ticks(5).into_iter().map(|tick| tick.1).collect();
        assert_eq!(texts, ["0", "10", "20", "30", "40"]);
    }

    #[test]
    fn a_wide_range_is_logarithmic_and_says_so() {
        let axis = Axis::over([0.01, 30.0].into_iter(), Unit::new("s", 1.0), "Time");
        assert_eq!(axis.title(), "Time (s, log scale)");
        let texts: Vec<String> = axis.ticks(5).into_iter().map(|tick| tick.1).collect();
        assert_eq!(texts, ["0.01", "0.1", "1", "10"]);
    }

    #[test]
    fn one_value_nothing_and_infinity_still_make_an_axis() {
        for values in [&[5.0][..], &[], &[f64::INFINITY], &[0.0], &[-3.0, -3.0]] {
            let axis = plain(values);
            assert!(axis.ticks(5).len() > 1, "{values:?}: {axis:?}");
            assert!(axis.place(f64::INFINITY).is_finite());
        }
    }

    proptest! {
        #[test]
        fn every_value_and_every_mark_stands_within_the_axis(
            values in prop::collection::vec(-1e6..1e9_f64, 1..20),
        ) {
            let axis = plain(&values);
            let marks = axis.ticks(6);
            prop_assert!(marks.len() <= 14, "{marks:?}");
            let places = values.iter().map(|value| axis.place(*value));
            for place in places.chain(marks.iter().map(|mark| mark.0)) {
                prop_assert!((-1e-6..=1.000_001).contains(&place), "{place}");
            }
        }
    }
}
