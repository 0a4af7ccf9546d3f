package dev.spry.core.data;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Calendar;
import java.util.GregorianCalendar;

import org.junit.jupiter.api.Test;

class TodayTest {
    @Test
    void writesADayInItsForm() {
        Calendar now = new GregorianCalendar(2026, Calendar.MARCH, 7, 5, 4, 9); // a Saturday
        String words = "now \ue000%d %b %Y\ue001, \ue000%A %a, %B %m/%y %H:%M:%S\ue001 $1";
        assertEquals("now 07 Mar 2026, Saturday Sat, March 03/26 05:04:09 $1", Today.in(words, now));
    }

    @Test
    void leavesOtherWordsAlone() {
        assertEquals("%d is no date", Today.in("%d is no date"));
    }
}
