package dev.spry.core.data;

import java.util.Calendar;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Today's date in a chat template's words, in the form that stands in its place: as Python's `strftime` writes it. */
final class Today {
    /** An export puts these two characters around a form. */
    private static final Pattern DAY = Pattern.compile("\ue000([^\ue001]*)\ue001");
    private static final Pattern DIRECTIVE = Pattern.compile("%([aAbBdmYyHMS])");
    private static final String[] DAYS = {
        "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    private static final String[] MONTHS = {"January", "February", "March", "April", "May", "June", "July", "August",
        "September", "October", "November", "December"};
    private static final int SHORT = 3;

    private Today() {}

    /** With the date by this device's clock. */
    static String in(String words) {
        return words.indexOf('\ue000') < 0 ? words : in(words, Calendar.getInstance(Locale.ROOT));
    }

    static String in(String words, Calendar now) {
        return replaced(DAY.matcher(words), form -> replaced(DIRECTIVE.matcher(form), one -> part(one, now)));
    }

    private interface Written {
        String of(String found);
    }

    private static String replaced(Matcher places, Written written) {
        StringBuffer text = new StringBuffer();
        while (places.find()) {
            places.appendReplacement(text, Matcher.quoteReplacement(written.of(places.group(1))));
        }
        return places.appendTail(text).toString();
    }

    private static String part(String directive, Calendar now) {
        String day = DAYS[now.get(Calendar.DAY_OF_WEEK) - Calendar.SUNDAY];
        String month = MONTHS[now.get(Calendar.MONTH) - Calendar.JANUARY];
        switch (directive) {
            case "a":
                return day.substring(0, SHORT);
            case "A":
                return day;
            case "b":
                return month.substring(0, SHORT);
            case "B":
                return month;
            case "d":
                return digits(now.get(Calendar.DAY_OF_MONTH));
            case "m":
                return digits(now.get(Calendar.MONTH) - Calendar.JANUARY + 1);
            case "Y":
                return Integer.toString(now.get(Calendar.YEAR));
            case "y":
                return digits(now.get(Calendar.YEAR) % 100);
            case "H":
                return digits(now.get(Calendar.HOUR_OF_DAY));
            case "M":
                return digits(now.get(Calendar.MINUTE));
            default:
                return digits(now.get(Calendar.SECOND));
        }
    }

    private static String digits(int number) {
        return String.format(Locale.ROOT, "%02d", number);
    }
}
