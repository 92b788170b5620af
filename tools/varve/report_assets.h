/// The texts of a report's page that are files of their own: tools/varve/report, and Chart.js of
/// the system. The build writes report_assets.cc.
#pragma once

#include <string_view>

namespace varve::cli {

extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;
extern const std::string_view kChartLibrary;  ///< Empty: built without it.
extern const std::string_view kChartLibraryLicense;

}  // namespace varve::cli
