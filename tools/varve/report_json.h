/// Turns what `varve report` has gathered of a run into JSON, for --json and for the page.
#pragma once

#include "json.h"
#include "report_data.h"

namespace varve::cli {

/// Returns the document. Texts in it are as the run's files have them.
Json ReportAsJson(const ReportData& data);

}  // namespace varve::cli
