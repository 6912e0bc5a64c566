//! A scene as SVG: inside the page, where colours are the page's variables, or as a file with the light page's colours.

use std::fmt::Write as _;

use super::{
    html::escape,
    scene::{Anchor, Dash, Paint, Scene, Shape},
};

/// Where the drawing will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the page.
    Page,
    /// A file of its own.
    File,
}

/// The drawing.
pub(super) fn svg(scene: &Scene, place: Place) -> String {
    let (width, height) = (scene.width, scene.height);
    let mut out = String::new();
    let head = match place {
        Place::Page => format!(
            "<svg viewBox=\"0 {:.0} {width:.0} {:.0}\" style=\"max-width:{width:.0}px\" role=\"img\">",
            scene.head,
            height - scene.head
        ),
        Place::File => format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" font-family=\"DejaVu Sans, Verdana, sans-serif\">"
        ),
    };
    add(
        &mut out,
        format_args!("{head}<title>{}</title>", escape(&scene.title)),
    );
    if place == Place::File {
        add(
            &mut out,
            format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"),
        );
    }
    let title = scene.titled().filter(|_| place == Place::File);
    for shape in title.iter().chain(&scene.shapes) {
        write_shape(&mut out, shape, place);
    }
    out.push_str("</svg>");
    out
}

/// Writing to a string does not fail.
fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    if out.write_fmt(text).is_err() {
        out.clear();
    }
}

fn colour(paint: Paint, place: Place) -> String {
    match place {
        Place::Page => format!("var(--{})", paint.variable()),
        Place::File => paint.light().to_owned(),
    }
}

fn write_shape(out: &mut String, shape: &Shape, place: Place) {
    match shape {
        Shape::Line {
            points,
            paint,
            width,
            dash,
        } => {
            line(out, points, (&colour(*paint, place), *width, *dash));
        }
        Shape::Area {
            points,
            paint,
            opacity,
            hint,
        } => {
            let (path, colour, hint) = (path(points), colour(*paint, place), title(hint));
            add(
                out,
                format_args!(
                    "<path d=\"{path}Z\" style=\"fill:{colour};fill-opacity:{opacity}\">{hint}</path>"
                ),
            );
        }
        Shape::Dot {
            at: (x, y),
            radius,
            paint,
            opacity,
            hint,
        } => {
            let (fill, edge, hint) = (
                colour(*paint, place),
                colour(Paint::Paper, place),
                title(hint),
            );
            add(
                out,
                format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" style=\"fill:{fill};fill-opacity:{opacity};stroke:{edge};stroke-width:.7\">{hint}</circle>"
                ),
            );
        }
        text @ Shape::Text { .. } => write_text(out, text, place),
    }
}

fn line(out: &mut String, points: &[(f64, f64)], (colour, width, dash): (&str, f64, Dash)) {
    let pattern: Vec<String> = dash.pattern().iter().map(f64::to_string).collect();
    let dashes = match pattern.is_empty() {
        true => String::new(),
        false => format!(";stroke-dasharray:{}", pattern.join(" ")),
    };
    let path = path(points);
    add(
        out,
        format_args!(
            "<path d=\"{path}\" style=\"fill:none;stroke:{colour};stroke-width:{width}{dashes};stroke-linejoin:round\"/>"
        ),
    );
}

fn write_text(out: &mut String, shape: &Shape, place: Place) {
    let Shape::Text {
        at: (x, y),
        text,
        size,
        paint,
        anchor,
        bold,
        upright,
    } = shape
    else {
        return;
    };
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let weight = if *bold { ";font-weight:600" } else { "" };
    let turn = if *upright {
        format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")
    } else {
        String::new()
    };
    let (fill, text) = (colour(*paint, place), escape(text));
    add(
        out,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{turn} text-anchor=\"{anchor}\" style=\"font-size:{size}px;fill:{fill}{weight}\">{text}</text>"
        ),
    );
}

fn title(hint: &str) -> String {
    if hint.is_empty() {
        return String::new();
    }
    format!("<title>{}</title>", escape(hint))
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::with_capacity(points.len() * 12);
    for (place, (x, y)) in points.iter().enumerate() {
        let letter = if place == 0 { 'M' } else { 'L' };
        add(&mut path, format_args!("{letter}{x:.1} {y:.1}"));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_files_cannot_leave_its_place() {
        let mut scene = Scene::new(100.0, 20.0, "</title><script>");
        scene.text((1.0, 2.0), "<b>&\"'", 10.0, Paint::Ink, Anchor::Start);
        scene.dot((1.0, 2.0), 2.0, Paint::Series(0), "<i>");
        let svg = svg(&scene, Place::Page);
        assert!(
            !svg.contains("<script") && !svg.contains("<b>") && !svg.contains("<i>"),
            "{svg}"
        );
        assert!(svg.contains("&lt;b&gt;&amp;&quot;&#39;"), "{svg}");
    }

    #[test]
    fn a_file_stands_alone_and_a_drawing_of_the_page_takes_its_colours() {
        let mut scene = Scene::new(100.0, 20.0, "a line");
        scene.line(
            &[(0.0, 0.0), (9.0, 9.0)],
            Paint::Series(1),
            2.0,
            Dash::Dashed,
        );
        let file = svg(&scene, Place::File);
        assert!(file.contains("xmlns=") && file.contains("#d55e00") && !file.contains("var("));
        assert!(svg(&scene, Place::Page).contains("var(--s1)"));
    }
}
