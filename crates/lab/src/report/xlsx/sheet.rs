//! A sheet filled cell by cell, row by row.

use rust_xlsxwriter::{Chart, Color, Format, FormatBorder, Worksheet, XlsxError};

/// Most rows of a sheet below its header. Excel's own limit, with the header, is 1,048,576 rows.
pub(super) const ROWS_MAX: u32 = 1_000_000;
/// Most characters of a cell in the file format.
const CELL_CHARS_MAX: usize = 32_767;

pub(super) struct Sheet<'a> {
    worksheet: &'a mut Worksheet,
    row: u32,
    column: u16,
    percent: Format,
}

impl<'a> Sheet<'a> {
    /// Names the sheet, and writes the comma-separated names of the columns to row 0, which stays in view.
    pub(super) fn new(worksheet: &'a mut Worksheet, name: &str, columns: &str) -> Result<Self, XlsxError> {
        worksheet.set_name(name)?;
        let format = Format::new().set_bold().set_background_color(Color::RGB(0x00e8_eef4));
        let format = format.set_border_bottom(FormatBorder::Thin).set_text_wrap();
        for (column, name) in (0..).zip(columns.split(',')) {
            worksheet.write_string_with_format(0, column, name, &format)?;
        }
        worksheet.set_freeze_panes(1, 0)?;
        Ok(Self { worksheet, row: 1, column: 0, percent: Format::new().set_num_format("+0 %;-0 %;0 %") })
    }

    /// Writes a string. It is never evaluated as a formula, whatever its first character.
    pub(super) fn text(&mut self, text: &str) -> Result<(), XlsxError> {
        if !text.is_empty() {
            let text: String = super::words::plain(text).chars().take(CELL_CHARS_MAX).collect();
            self.worksheet.write_string(self.row, self.column, text)?;
        }
        self.column += 1;
        Ok(())
    }

    /// Writes a number; leaves the cell empty for None.
    pub(super) fn number(&mut self, value: Option<f64>) -> Result<(), XlsxError> {
        if let Some(value) = value.filter(|v| v.is_finite()) {
            self.worksheet.write_number(self.row, self.column, value)?;
        }
        self.column += 1;
        Ok(())
    }

    pub(super) fn texts<'t>(&mut self, texts: impl IntoIterator<Item = &'t str>) -> Result<(), XlsxError> {
        texts.into_iter().try_for_each(|text| self.text(text))
    }

    pub(super) fn numbers(&mut self, values: impl IntoIterator<Item = Option<f64>>) -> Result<(), XlsxError> {
        values.into_iter().try_for_each(|value| self.number(value))
    }

    pub(super) fn percent(&mut self, fraction: Option<f64>) -> Result<(), XlsxError> {
        if let Some(value) = fraction.filter(|v| v.is_finite()) {
            self.worksheet.write_number_with_format(self.row, self.column, value, &self.percent)?;
        }
        self.column += 1;
        Ok(())
    }

    pub(super) fn next(&mut self) {
        self.row += 1;
        self.column = 0;
    }

    /// Returns the number of rows without the header.
    pub(super) fn rows(&self) -> u32 {
        self.row.saturating_sub(1)
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows() >= ROWS_MAX
    }

    pub(super) fn chart(&mut self, row: u32, column: u16, chart: &Chart) -> Result<(), XlsxError> {
        self.worksheet.insert_chart(row, column, chart).map(drop)
    }

    /// Sets the widths in characters, from the first column on.
    pub(super) fn finish(self, widths: &[f64]) -> Result<(), XlsxError> {
        for (column, width) in (0..).zip(widths) {
            self.worksheet.set_column_width(column, *width)?;
        }
        Ok(())
    }
}
