package dev.spry.core.wire;

import java.io.IOException;
import java.text.ParseException;
import java.text.SimpleDateFormat;
import java.util.Locale;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.ServerException;
import dev.spry.core.UnauthorizedException;

/** What a server says where it refuses: a problem document (RFC 9457), or what stands in its place. */
final class Refusals {
    /** Characters of a refusal. */
    private static final int LONGEST = 1000;
    private static final String PROBLEM = "application/problem+json";

    private Refusals() {
    }

    static ServerException of(Reply reply, byte[] body) throws IOException {
        String detail = (reply.url + " answers " + reply.status + " " + reply.phrase()).trim();
        String code = "";
        if (reply.type().equals(PROBLEM)) {
            try {
                JSONObject problem = Json.parse(body);
                detail = text(problem, "detail", text(problem, "title", detail));
                code = text(problem, "code", "");
            } catch (JSONException error) {
                detail += ", and no reason that can be read";
            }
        } else if (reply.status >= 300 && reply.status < 500) {
            detail += "; check the server's address";
        }
        detail = shortened(Bounds.shown(detail));
        code = shortened(code);
        double after = retryAfter(reply.header("Retry-After"), reply.header("Date"));
        return reply.status == 401
                ? new UnauthorizedException(detail, code, after)
                : new ServerException(detail, code, reply.status, after);
    }

    private static String text(JSONObject problem, String name, String without) throws JSONException {
        return Json.text(problem, name, 0, Integer.MAX_VALUE, without);
    }

    private static String shortened(String text) {
        return text.substring(0, Math.min(text.length(), LONGEST));
    }

    /** The seconds that a Retry-After header asks to wait, given as a number or as a date by its own clock. */
    static double retryAfter(String value, String now) {
        try {
            double found = Double.parseDouble(value);
            return Double.isNaN(found) ? found : Math.max(found, 0);
        } catch (NumberFormatException number) {
            try {
                return Math.max((moment(value) - moment(now)) / 1000.0, 0);
            } catch (ParseException date) {
                return Double.NaN;
            }
        }
    }

    /** A header's date, in milliseconds since 1970. */
    static long moment(String date) throws ParseException {
        return new SimpleDateFormat("EEE, dd MMM yyyy HH:mm:ss zzz", Locale.US).parse(date).getTime();
    }
}
