//! Shapes and text, written as SVG.

use std::fmt::Write;

use super::palette::{Colour, INK, SOFT, WHITE, css};

pub(super) const WIDTH: f64 = 1000.0;
/// Between what is drawn and the edge.
pub(super) const EDGE: f64 = 20.0;
/// What a letter takes of its height, on average.
const GLYPH: f64 = 0.55;
const FONT: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

#[derive(Clone, Copy, Default)]
pub(super) enum Anchor {
    #[default]
    Start,
    Middle,
    End,
}

#[derive(Clone, Copy)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) colour: Colour,
    pub(super) is_bold: bool,
    pub(super) anchor: Anchor,
}

pub(super) const PLAIN: Font = Font { size: 12.0, colour: INK, is_bold: false, anchor: Anchor::Start };
pub(super) const QUIET: Font = Font { colour: SOFT, ..PLAIN };

/// Left, top, width and height.
pub(super) type Area = [f64; 4];

pub(super) struct Picture {
    body: String,
    /// What is above is drawn.
    pub(super) y: f64,
}

impl Picture {
    /// With a title, and what is said below it.
    pub(super) fn new(title: &str, about: &str) -> Self {
        let mut picture = Self { body: format!("<title>{}</title>\n", escaped(title)), y: EDGE + 14.0 };
        picture.text([EDGE, picture.y], title, Font { size: 16.0, is_bold: true, ..PLAIN });
        picture.y += 20.0;
        picture.text([EDGE, picture.y], about, QUIET);
        picture.y += 18.0;
        picture
    }

    pub(super) fn area(&mut self, [x, y, width, height]: Area, fill: Colour) {
        self.rounded([x, y, width, height], fill, None, 0.0);
    }

    pub(super) fn rounded(
        &mut self,
        [x, y, width, height]: Area,
        fill: Colour,
        edge: Option<Colour>,
        by: f64,
    ) {
        let [x, y, width, height] = [x, y, width, height].map(short);
        let _ = write!(
            self.body,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{}""#,
            css(fill)
        );
        if let Some(edge) = edge {
            let _ = write!(self.body, r#" stroke="{}""#, css(edge));
        }
        if by > 0.0 {
            let _ = write!(self.body, r#" rx="{}""#, short(by));
        }
        self.body.push_str("/>\n");
    }

    pub(super) fn circle(&mut self, [x, y]: [f64; 2], radius: f64, fill: Colour) {
        let [x, y, radius] = [x, y, radius].map(short);
        let _ = writeln!(
            self.body,
            r##"<circle cx="{x}" cy="{y}" r="{radius}" fill="{}" stroke="#ffffff"/>"##,
            css(fill)
        );
    }

    /// A line from point to point; `dashes` are lengths with gaps of the same between them.
    pub(super) fn line(&mut self, points: &[[f64; 2]], colour: Colour, wide: f64, dashes: Option<f64>) {
        let _ = write!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="{}""#,
            all_of(points),
            css(colour),
            short(wide)
        );
        if let Some(long) = dashes {
            let _ = write!(self.body, r#" stroke-dasharray="{}""#, short(long));
        }
        self.body.push_str("/>\n");
    }

    pub(super) fn polygon(&mut self, points: &[[f64; 2]], fill: Colour) {
        let _ = writeln!(self.body, r#"<polygon points="{}" fill="{}"/>"#, all_of(points), css(fill));
    }

    /// From the base line on.
    pub(super) fn text(&mut self, [x, y]: [f64; 2], text: &str, font: Font) {
        let [x, y, size] = [x, y, font.size].map(short);
        let _ = write!(self.body, r#"<text x="{x}" y="{y}" font-size="{size}" fill="{}""#, css(font.colour));
        self.body.push_str(if font.is_bold { r#" font-weight="600""# } else { "" });
        self.body.push_str(match font.anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        });
        let _ = writeln!(self.body, ">{}</text>", escaped(text));
    }

    /// Below what is drawn.
    pub(super) fn legend(&mut self, entries: &[(Colour, String)]) {
        let mut x = EDGE;
        self.y += 8.0;
        for (colour, word) in entries {
            let wide = 18.0 + width_of(word, PLAIN.size) + 18.0;
            if x + wide > WIDTH - EDGE && x > EDGE {
                (x, self.y) = (EDGE, self.y + 18.0);
            }
            self.rounded([x, self.y, 12.0, 12.0], *colour, None, 2.0);
            self.text([x + 18.0, self.y + 10.5], word, PLAIN);
            x += wide;
        }
        self.y += 12.0;
    }

    pub(super) fn finish(self) -> String {
        let (width, height) = (short(WIDTH), short(self.y + EDGE));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"{FONT}\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n{}</svg>\n",
            css(WHITE),
            self.body
        )
    }
}

fn all_of(points: &[[f64; 2]]) -> String {
    let points: Vec<String> = points.iter().map(|[x, y]| format!("{},{}", short(*x), short(*y))).collect();
    points.join(" ")
}

/// How wide a text is, about.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * GLYPH
}

/// As much of a text as has room.
pub(super) fn cut(text: &str, room: f64, size: f64) -> String {
    let most = (room / (size * GLYPH)).max(1.0) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Two digits after the point at most.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Round places between two numbers, about so many.
pub(super) fn ticks(from: f64, to: f64, count: f64) -> Vec<f64> {
    let raw = (to - from) / count;
    if raw <= 0.0 || !raw.is_finite() {
        return vec![from];
    }
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power).into_iter().find(|by| *by >= raw).unwrap_or(raw);
    let first = (from / step).ceil() as i64;
    (first..).map(|at| at as f64 * step).take_while(|at| *at <= to + step * 1e-6).collect()
}

#[cfg(test)]
mod tests {
    use super::{cut, escaped, short, ticks};

    #[test]
    fn numbers_are_short() {
        assert_eq!([1.0, 0.5, 1.0 / 3.0, 0.001, 100.0].map(short), ["1", "0.5", "0.33", "0", "100"]);
    }

    #[test]
    fn no_text_is_a_tag() {
        assert_eq!(escaped("<b> & c"), "&lt;b&gt; &amp; c");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(cut("abcdef", 1000.0, 10.0), "abcdef");
        assert_eq!(cut("abcdef", 17.0, 10.0), "ab…");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 10.0, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(1.0, 1.0, 5.0), [1.0]);
    }
}
