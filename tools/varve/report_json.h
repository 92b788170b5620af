/// What `varve report` knows of a run, as JSON: the output of --json, and all that its page shows.
#pragma once

#include "json.h"
#include "report_data.h"

namespace varve::cli {

/// Returns the document. Texts in it are as the run's files have them.
Json ReportAsJson(const ReportData& data);

}  // namespace varve::cli
