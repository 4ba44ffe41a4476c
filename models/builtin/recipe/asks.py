"""Further ways to ask for each household action; training alone sees them, on top of the pools that both parts share.

They are whole wordings; `phrasing.py` puts frames such as 'could you ... please' around them.
"""

ASKS: dict[str, str] = {
    "timer": """
set the timer for {n} minutes
set me a timer for {n} minutes
set one timer of {n} minutes
set a kitchen timer for {n} minutes
set a countdown of {n} minutes
set a countdown for {n} minutes
set up a {n} minute timer
set up a timer for {n} minutes
set a timer to {n} minutes
set a {n} min timer
set timer {n} minutes
set {n} minutes on the timer
start the timer with {n} minutes
start a countdown of {n} minutes
start a {n} minute countdown
start timing {n} minutes
start the kitchen timer for {n} minutes
start counting down {n} minutes
create a timer for {n} minutes
create a {n} minute timer
make a timer for {n} minutes
make me a {n} minute timer
add a timer for {n} minutes
add a {n} minute timer
begin a timer of {n} minutes
begin a countdown of {n} minutes
open a timer for {n} minutes
get a timer going for {n} minutes
get me a {n} minute timer
launch a timer for {n} minutes
kick off a timer for {n} minutes
run a {n} minute timer
run the timer for {n} minutes
time {n} minutes
time me for {n} minutes
count {n} minutes
count down from {n} minutes
beep in {n} minutes
beep after {n} minutes
ring after {n} minutes
ding in {n} minutes
alert me in {n} minutes
alert me after {n} minutes
notify me in {n} minutes
notify me when {n} minutes are up
warn me in {n} minutes
ping me in {n} minutes
buzz me in {n} minutes
shout in {n} minutes
tell me when {n} minutes are up
tell me when {n} minutes are over
tell me in {n} minutes
let me know in {n} minutes
let me know after {n} minutes
let me know when {n} minutes have gone by
give me {n} minutes on the timer
give me a {n} minute timer
put a timer on for {n} minutes
put on a timer for {n} minutes
put the timer on {n} minutes
pop a timer on for {n} minutes
stick a timer on for {n} minutes
wake me up in {n} minutes
wake me after {n} minutes
new timer, {n} minutes
new timer: {n} minutes
timer: {n} minutes
timer at {n} minutes
timer of {n} minutes
timer with {n} minutes
timer {n} min
timer {n}
{n} minutes timer
{n} minutes on the clock
{n} minutes on the timer
{n} minute timer
{n} minute countdown
{n} min timer
{n} minutes from now, ring
countdown {n} minutes
countdown of {n} minutes
a {n} minute timer
a {n} minute countdown
one timer, {n} minutes
a timer of {n} minutes
I need a {n} minute timer
I need a countdown of {n} minutes
I need {n} minutes on the timer
I need to be told when {n} minutes are up
I want a timer for {n} minutes
I want a {n} minute timer
I'd like a timer for {n} minutes
I would like a {n} minute timer
I'm cooking eggs, {n} minutes
the eggs need {n} minutes
the pizza takes {n} minutes
the cake needs {n} minutes in the oven
the rice takes {n} minutes
my tea has to steep {n} minutes
my bread needs {n} minutes
how about a timer for {n} minutes
can I have a timer for {n} minutes?
can I get a {n} minute timer?
may I have a timer of {n} minutes?
could I have {n} minutes on the timer?
could we have a timer for {n} minutes?
is it possible to get a timer for {n} minutes?
would you time {n} minutes?
I have {n} minutes, tell me when they are over
in {n} minutes give me a signal
in {n} minutes let me know
after {n} minutes tell me
we need a timer for {n} minutes
we need {n} minutes
""",
    "alarm": """
set an alarm at {time}
set the alarm for {time}
set my alarm for {time}
set my alarm to {time}
set me an alarm for {time}
set a new alarm for {time}
set a wake-up alarm for {time}
set an alarm clock for {time}
set the alarm clock for {time}
set the clock to wake me at {time}
set up an alarm for {time}
set up the alarm at {time}
set alarm {time}
set a {time} alarm
schedule an alarm for {time}
schedule a wake-up at {time}
create an alarm for {time}
create an alarm at {time}
create a {time} alarm
add an alarm for {time}
add an alarm at {time}
add a new alarm at {time}
make an alarm at {time}
make me an alarm for {time}
put an alarm at {time}
put the alarm on {time}
put my alarm on for {time}
activate an alarm for {time}
turn on an alarm for {time}
switch on the alarm for {time}
start an alarm at {time}
give me an alarm at {time}
give me a wake-up call at {time}
get me up at {time}
get me out of bed at {time}
get everyone up at {time}
wake us at {time}
wake us up at {time}
wake me by {time}
wake me up by {time}
wake me up for {time}
wake the kids at {time}
wake everybody at {time}
ring at {time}
ring me awake at {time}
ring the bell at {time}
sound the alarm at {time}
sound an alarm at {time}
make sure I am up at {time}
make sure I wake up at {time}
make sure that I am awake by {time}
let the alarm go off at {time}
have an alarm go off at {time}
have the alarm ring at {time}
new alarm at {time}
new alarm, {time}
new alarm: {time}
alarm: {time}
alarm {time}
alarm on {time}
alarm set to {time}
alarm clock {time}
alarm clock at {time}
alarm clock for {time}
an alarm at {time}
an alarm for {time}
{time} alarm
{time} wake-up call
{time}, wake me
wake-up call at {time}
wake-up at {time}
wake up call for {time}
at {time} wake me up
at {time} ring the alarm
I need to be up at {time}
I need to be up by {time}
I need to get up at {time}
I need to wake up at {time}
I need waking at {time}
I need an alarm for {time}
I want to get up at {time}
I want to be woken at {time}
I want to wake up at {time}
I want an alarm at {time}
I'd like an alarm for {time}
I'd like to get up at {time}
I would like to be woken at {time}
I would like a wake-up call at {time}
I have to be up at {time}
I have to wake up at {time}
I must get up at {time}
I should be up by {time}
I get up at {time}
my train leaves early, wake me at {time}
we get up at {time}
we have to get up at {time}
we need to be up at {time}
can I have an alarm at {time}?
can I get a wake-up call at {time}?
could I be woken at {time}?
may I have an alarm for {time}?
don't let me sleep past {time}
don't let me sleep longer than {time}
do not let me oversleep, {time}
""",
    "light": """
turn {state} the lights in the {room}
turn {state} the lamp in the {room}
turn {state} the lamps in the {room}
turn {state} all the lights in the {room}
turn {state} the {room} lights
turn {state} the {room} lamp
turn {state} every light in the {room}
turn {state} my {room} light
turn {state} light in {room}
turn {state} lights in the {room}
turn the {room} light {state}
turn the {room} lights {state}
turn the {room} lamp {state}
turn the light {state} in the {room}
turn the lights {state} in the {room}
turn the lights of the {room} {state}
turn the light in the {room} {state}
turn the lights in the {room} {state}
turn the lamp in the {room} {state}
turn the {room} lighting {state}
turn {room} light {state}
turn {room} lights {state}
switch {state} the lights in the {room}
switch {state} the {room} light
switch {state} the {room} lights
switch {state} the lamp in the {room}
switch {state} the {room} lamp
switch {state} the lighting in the {room}
switch the {room} light {state}
switch the {room} lights {state}
switch the light {state} in the {room}
switch the lights {state} in the {room}
switch the light in the {room} {state}
switch the lights in the {room} {state}
switch the lamp in the {room} {state}
switch {room} light {state}
switch {room} lights {state}
put {state} the light in the {room}
put the {room} light {state}
put the {room} lights {state}
put the lights {state} in the {room}
put the light in the {room} {state}
flip the {room} light {state}
flip the light in the {room} {state}
get the {room} light {state}
get the lights {state} in the {room}
set the {room} light to {state}
set the light in the {room} to {state}
set the {room} lights {state}
make the {room} light go {state}
make the lights in the {room} go {state}
have the {room} light {state}
have the light in the {room} {state}
keep the {room} light {state}
bring the {room} light {state}
power {state} the {room} light
power {state} the lights in the {room}
power the {room} lights {state}
click the {room} light {state}
{room} light {state}
{room} lights {state}
{room} lamp {state}
{room} lighting {state}
{room}, light {state}
{room}, lights {state}
{room}: light {state}
{room}: lights {state}
light {state} in the {room}
light {state}, {room}
light {state} {room}
light in the {room} {state}
lights {state} in the {room}
lights {state}, {room}
lights {state} in {room}
lights in the {room} {state}
lamp {state} in the {room}
lamp in the {room} {state}
the {room} light {state}
the {room} lights {state}
the lights in the {room} {state}
the light {state} in the {room}
all lights {state} in the {room}
all lights in the {room} {state}
{state} with the light in the {room}
{state} with the lights in the {room}
in the {room} switch the light {state}
in the {room} turn the lights {state}
in the {room}, light {state}
in the {room}, lights {state}
I want the light {state} in the {room}
I want the lights {state} in the {room}
I want the {room} lights {state}
I need the {room} light {state}
I need the light {state} in the {room}
I need the lights in the {room} {state}
I'd like the {room} light {state}
I'd like the lights {state} in the {room}
I would like the light in the {room} {state}
we need the lights {state} in the {room}
we want the {room} light {state}
the {room} light should be {state}
the lights in the {room} should be {state}
the {room} light has to be {state}
the {room} lights need to be {state}
the {room} light needs to go {state}
the light in the {room} must be {state}
let the light in the {room} be {state}
the {room} lamp should be {state}
can I have the light {state} in the {room}?
can I have the {room} light {state}?
can we have the lights {state} in the {room}?
could we have the {room} light {state}?
could I have the lights in the {room} {state}?
would you have the {room} lights {state}?
make sure that the light in the {room} is {state}
make sure the lights are {state} in the {room}
see that the {room} light is {state}
check that the {room} light is {state}
""",
    "dim": """
dim the {room} lights to {n} percent
dim the lights in the {room} to {n} percent
dim the lamp in the {room} to {n} percent
dim the {room} lamp to {n} percent
dim the {room} to {n} percent
dim {room} light to {n} percent
dim the light to {n} percent in the {room}
dim the lights to {n} percent in the {room}
dim down the {room} light to {n} percent
set the light in the {room} to {n} percent
set the lights in the {room} to {n} percent
set the {room} lights to {n} percent
set the {room} lamp to {n} percent
set the {room} brightness to {n} percent
set the brightness of the {room} to {n} percent
set the brightness of the {room} light to {n} percent
set the light level in the {room} to {n} percent
set the {room} light level to {n} percent
set the {room} to {n} percent brightness
set the {room} to {n} percent light
set brightness in the {room} to {n} percent
set the brightness to {n} percent in the {room}
set {room} lights to {n} percent
turn the {room} light to {n} percent
turn the {room} lights to {n} percent
turn the light in the {room} to {n} percent
turn the {room} brightness to {n} percent
turn the light to {n} percent in the {room}
turn the {room} light down to {n} percent
turn the {room} light up to {n} percent
put the light in the {room} at {n} percent
put the {room} light on {n} percent
put the {room} lights to {n} percent
put the brightness in the {room} at {n} percent
bring the light in the {room} to {n} percent
bring the {room} lights down to {n} percent
bring the {room} lights up to {n} percent
bring the brightness in the {room} to {n} percent
lower the {room} light to {n} percent
lower the lights in the {room} to {n} percent
raise the {room} light to {n} percent
raise the brightness in the {room} to {n} percent
reduce the {room} light to {n} percent
reduce the brightness in the {room} to {n} percent
increase the {room} light to {n} percent
brighten the {room} to {n} percent
brighten the {room} light to {n} percent
change the brightness in the {room} to {n} percent
change the {room} light to {n} percent
change the {room} brightness to {n} percent
adjust the {room} light to {n} percent
adjust the brightness in the {room} to {n} percent
adjust the lights in the {room} to {n} percent
make the light in the {room} {n} percent
make the {room} {n} percent bright
make the {room} lights {n} percent
make the lights {n} percent in the {room}
get the {room} light to {n} percent
give me {n} percent light in the {room}
give the {room} light {n} percent
light the {room} at {n} percent
keep the {room} light at {n} percent
fade the {room} light to {n} percent
{room} light {n} percent
{room} light to {n} percent
{room} lights at {n} percent
{room} lights to {n} percent
{room} lamp {n} percent
{room} brightness {n} percent
{room} brightness to {n} percent
{room} at {n} percent brightness
{n} percent light in the {room}
{n} percent brightness in the {room}
{n} percent in the {room}, the light
brightness in the {room} {n} percent
brightness in the {room} to {n} percent
brightness {n} percent, {room}
light level {n} percent in the {room}
light in the {room} to {n} percent
light in the {room} at {n} percent
lights at {n} percent in the {room}
lights in the {room} at {n} percent
the {room} light at {n} percent
the {room} lights to {n} percent
I want the {room} light at {n} percent
I want the light in the {room} at {n} percent
I want {n} percent brightness in the {room}
I need {n} percent light in the {room}
I'd like the {room} light at {n} percent
I would like {n} percent light in the {room}
I'd like the lights in the {room} at {n} percent
the {room} light should be at {n} percent
the light in the {room} should be {n} percent
the brightness in the {room} should be {n} percent
can I have {n} percent light in the {room}?
can we have the {room} light at {n} percent?
could I get {n} percent brightness in the {room}?
in the {room}, dim the light to {n} percent
in the {room} set the light to {n} percent
""",
    "colour": """
make the light in the {room} {colour}
make the {room} lights {colour}
make the lights in the {room} {colour}
make the lamp in the {room} {colour}
make the {room} lamp {colour}
make the {room} {colour}
make {room} light {colour}
set the light in the {room} to {colour}
set the lights in the {room} to {colour}
set the {room} lights to {colour}
set the {room} lamp to {colour}
set the lamp in the {room} to {colour}
set the {room} colour to {colour}
set the colour of the {room} light to {colour}
set the light colour in the {room} to {colour}
set the {room} light colour to {colour}
set the color in the {room} to {colour}
set the color of the {room} lights to {colour}
set the {room} to {colour} light
set {room} lights to {colour}
set {colour} light in the {room}
change the light in the {room} to {colour}
change the lights in the {room} to {colour}
change the {room} lights to {colour}
change the {room} lamp to {colour}
change the colour in the {room} to {colour}
change the colour of the {room} light to {colour}
change the color of the lights in the {room} to {colour}
change the {room} light colour to {colour}
change the {room} to {colour}
turn the lights in the {room} {colour}
turn the light in the {room} {colour}
turn the {room} lights {colour}
turn the {room} lamp {colour}
turn the {room} {colour}
turn on {colour} light in the {room}
turn on the {colour} light in the {room}
switch the {room} light to {colour}
switch the {room} lights to {colour}
switch the light in the {room} to {colour}
switch the colour in the {room} to {colour}
switch to {colour} light in the {room}
put {colour} light in the {room}
put the {room} light to {colour}
put the {room} in {colour} light
put on {colour} light in the {room}
give the {room} {colour} light
give the {room} light a {colour} colour
give me {colour} light in the {room}
give the {room} a {colour} glow
light the {room} {colour}
light the {room} in {colour}
light up the {room} in {colour}
paint the {room} light {colour}
colour the {room} light {colour}
colour the lights in the {room} {colour}
color the {room} lights {colour}
tint the {room} light {colour}
adjust the {room} light to {colour}
get the {room} light {colour}
have the {room} light {colour}
bathe the {room} in {colour} light
let the {room} light be {colour}
let the {room} lamp glow {colour}
let the light in the {room} shine {colour}
{room} light {colour}
{room} lights {colour}
{room} lamp {colour}
{room} light to {colour}
{room} lights to {colour}
{room} light in {colour}
{room} in {colour}
{room}, {colour} light
{room} colour {colour}
{colour} for the {room} light
{colour} lights in the {room}
{colour} lighting in the {room}
{colour} light for the {room}
{colour} in the {room}
light in the {room} {colour}
lights in the {room} to {colour}
light colour {colour} in the {room}
colour {colour} in the {room}
the {room} light {colour}
the {room} light in {colour}
the light in the {room} in {colour}
I want the {room} light {colour}
I want the {room} light to be {colour}
I want the lights in the {room} {colour}
I want {colour} lights in the {room}
I'd like {colour} light in the {room}
I'd like the {room} light {colour}
I'd like the {room} in {colour}
I would like the {room} light to be {colour}
I would like {colour} light in the {room}
I need {colour} light in the {room}
the {room} light should be {colour}
the {room} should be {colour}
the light in the {room} should be {colour}
the lights in the {room} should turn {colour}
can I have {colour} light in the {room}?
can we have {colour} light in the {room}?
can I get the {room} light in {colour}?
could we have the {room} light in {colour}?
in the {room}, make the light {colour}
in the {room} I want {colour} light
""",
    "heating": """
set the {room} temperature to {n} degrees
set the {room} temperature to {n}
set the temperature in the {room} to {n} degrees
set the temperature of the {room} to {n} degrees
set the thermostat in the {room} to {n} degrees
set the {room} thermostat to {n} degrees
set the {room} thermostat to {n}
set the thermostat to {n} degrees in the {room}
set the heating to {n} degrees in the {room}
set the heating in the {room} to {n}
set the heating of the {room} to {n} degrees
set the {room} heating to {n}
set the {room} heat to {n} degrees
set the radiator in the {room} to {n} degrees
set the {room} radiator to {n} degrees
set the heat in the {room} to {n} degrees
set the {room} to {n}
set {room} to {n} degrees
set {n} degrees in the {room}
heat up the {room} to {n} degrees
heat the {room} up to {n} degrees
heat the {room} to {n}
heat my {room} to {n} degrees
warm up the {room} to {n} degrees
warm the {room} up to {n} degrees
warm the {room} to {n}
cool the {room} to {n} degrees
cool the {room} down to {n} degrees
turn the heating in the {room} to {n} degrees
turn the heating in the {room} up to {n} degrees
turn the heating in the {room} down to {n} degrees
turn the {room} heating to {n} degrees
turn the {room} heating up to {n} degrees
turn the {room} to {n} degrees
turn the {room} thermostat to {n} degrees
turn the {room} temperature to {n} degrees
turn up the {room} heating to {n} degrees
turn down the {room} heating to {n} degrees
turn the thermostat in the {room} to {n}
turn the radiator in the {room} to {n}
put the {room} heating on {n} degrees
put the heating in the {room} at {n} degrees
put the heating in the {room} to {n} degrees
put the {room} thermostat at {n} degrees
put the {room} at {n} degrees
put the temperature in the {room} to {n} degrees
bring the {room} to {n} degrees
bring the {room} up to {n} degrees
bring the temperature in the {room} to {n} degrees
get the {room} to {n} degrees
get the {room} up to {n} degrees
change the {room} temperature to {n} degrees
change the temperature in the {room} to {n} degrees
change the heating in the {room} to {n} degrees
change the {room} heating to {n} degrees
adjust the {room} temperature to {n} degrees
adjust the heating in the {room} to {n} degrees
adjust the {room} thermostat to {n} degrees
raise the temperature in the {room} to {n} degrees
raise the {room} to {n} degrees
lower the temperature in the {room} to {n} degrees
lower the {room} heating to {n} degrees
increase the {room} temperature to {n} degrees
reduce the {room} temperature to {n} degrees
make the {room} {n} degrees
make the {room} {n} degrees warm
make it {n} degrees warm in the {room}
hold the {room} at {n} degrees
keep the temperature in the {room} at {n} degrees
keep the {room} temperature at {n} degrees
give me {n} degrees in the {room}
run the heating in the {room} at {n} degrees
{room} temperature {n} degrees
{room} temperature to {n} degrees
{room} to {n} degrees
{room} at {n} degrees
{room} heating {n} degrees
{room} heating at {n}
{room} thermostat {n}
{room} thermostat to {n} degrees
{room}, {n} degrees
{room}: {n} degrees
{n} degrees in the {room}
{n} degrees for the {room}
{n} degrees, {room}
heating in the {room} to {n} degrees
heating in the {room} at {n}
heating {room} {n} degrees
temperature in the {room} to {n} degrees
temperature in the {room} {n} degrees
thermostat in the {room} to {n}
thermostat {room} {n} degrees
the {room} at {n} degrees
the {room} to {n} degrees
I want the {room} at {n} degrees
I want the {room} to be {n} degrees
I want it {n} degrees in the {room}
I want the heating in the {room} at {n} degrees
I need {n} degrees in the {room}
I need the {room} at {n} degrees
I'd like {n} degrees in the {room}
I'd like the {room} at {n} degrees
I would like it to be {n} degrees in the {room}
I would like the {room} to be {n} degrees warm
we need {n} degrees in the {room}
we want the {room} at {n} degrees
the {room} should be {n} degrees
the {room} should be at {n} degrees
the {room} needs {n} degrees
the temperature in the {room} should be {n} degrees
it should be {n} degrees in the {room}
let the {room} be {n} degrees
can I have {n} degrees in the {room}?
can we have the {room} at {n} degrees?
could we have {n} degrees in the {room}?
in the {room} I want {n} degrees
in the {room}, set {n} degrees
""",
    "music": """
play something from {what}
play music by {what}
play music from {what}
play a song by {what}
play songs by {what}
play a bit of {what}
play a little {what}
play us some {what}
play us {what}
play me some {what}
play me something by {what}
play me a song by {what}
play the best of {what}
play the album by {what}
play my {what} playlist
play the {what} playlist
play {what} on the speaker
play {what} in the house
play {what} music
put some {what} on
put {what} on
put on something by {what}
put on music by {what}
put on a bit of {what}
put on the {what} playlist
put on my {what} playlist
put a song by {what} on
start playing {what}
start some {what}
start music by {what}
start the {what} playlist
start the music, {what}
turn {what} on
turn on {what}
turn on music by {what}
stream {what}
stream some {what}
stream music by {what}
queue {what}
queue up {what}
queue up some {what}
throw on some {what}
stick on some {what}
stick {what} on
get some {what} playing
get {what} playing
give us some {what}
give me some {what}
give me {what}
give me a song by {what}
let us hear {what}
let us listen to {what}
let's listen to {what}
let's have some {what}
let's hear some {what}
let me listen to {what}
let me hear some {what}
find {what} and play it
find me some {what} to listen to
search for {what} and play it
music: {what}
music by {what}
music from {what}
music, {what}
some {what} please
some {what} music please
songs by {what}
songs by {what} please
a song by {what}
a song by {what} please
a little {what} please
{what} please, nice and easy
{what} on the speaker
{what} playlist please
{what} music please
I want to listen to {what}
I want to hear some {what}
I want {what} music
I want music by {what}
I want some {what}
I'd like to hear {what}
I'd like to listen to {what}
I'd like some {what}
I'd love to hear {what}
I would like to hear some {what}
I would love some {what}
I need some {what}
I need to hear {what}
I need music by {what}
I feel like {what}
I feel like listening to {what}
I fancy some {what}
I fancy hearing {what}
I am in the mood for {what}
I'm in the mood for some {what}
we want to hear {what}
we would like to hear {what}
we'd like some {what}
how about some {what}
how about a song by {what}?
how about some music by {what}?
can I hear {what}?
can I hear some {what}?
can I listen to {what}?
can we hear {what}?
can we have some {what}?
can we listen to some {what}?
could I hear something by {what}?
could we have some {what} on?
may I hear {what}?
do you have anything by {what}?
do you have {what}?
have you got any {what}?
got any {what}?
time for some {what}
time for {what}
it's time for some {what}
""",
    "volume": """
set the volume at {n}
set volume to {n}
set volume {n}
set the volume on {n}
set the volume to {n} percent
set the music to {n} percent volume
set the music volume to {n}
set the sound to {n}
set the sound level to {n}
set the speaker to {n}
set the speaker volume to {n}
set the loudness to {n}
turn the sound to {n}
turn the volume up to {n}
turn the volume down to {n}
turn the music up to {n}
turn the music down to {n}
turn the music to {n}
turn the music volume to {n}
turn it up to {n}
turn it down to {n}
turn up the volume to {n}
turn down the volume to {n}
turn down the sound to {n}
turn up the music to {n}
turn down the music to {n}
turn the speaker to {n}
turn the speakers down to {n}
turn the sound down to {n}
turn the sound up to {n}
turn volume to {n}
change the sound to {n}
change the sound level to {n}
change volume to {n}
change the music volume to {n}
change the loudness to {n}
adjust the volume to {n}
adjust the sound to {n}
adjust the sound level to {n}
adjust the music volume to {n}
raise the volume to {n}
raise the sound level to {n}
increase the volume to {n}
increase the sound to {n}
lower the volume to {n}
lower the sound to {n}
lower the music to {n}
reduce the volume to {n}
reduce the sound level to {n}
decrease the volume to {n}
bring the volume to {n}
bring the volume down to {n}
bring the volume up to {n}
put the volume at {n}
put the volume to {n}
put the volume on {n}
put the music at volume {n}
put the sound on {n}
put volume at {n}
crank the volume to {n}
crank it up to {n}
drop the volume to {n}
get the volume to {n}
get the volume down to {n}
make the sound level {n}
make the music volume {n}
make it louder, volume {n}
make it quieter, volume {n}
make the music as loud as {n}
keep the volume at {n}
play at volume {n}
play it at volume {n}
play the music at volume {n}
move the volume to {n}
slide the volume to {n}
volume at {n}
volume on {n}
volume up to {n}
volume down to {n}
volume: {n}
volume level {n}
volume to {n}
volume to {n} percent
volume {n} percent
music volume {n}
music volume to {n}
music at {n} percent volume
speaker volume {n}
sound to {n}
sound at {n}
sound level {n}
sound level to {n}
the volume to {n}
the volume at {n}
the sound at {n}
louder, to {n}
quieter, to {n}
I want volume {n}
I want the volume to be {n}
I want the music at {n}
I want the sound at {n}
I need the volume at {n}
I'd like the volume at {n}
I'd like the volume to be {n}
I'd like the sound at {n}
I would like the volume at {n}
the volume should be {n}
the volume should be at {n}
the sound should be at {n}
the music should be at volume {n}
it is too loud, volume {n}
it is too quiet, volume {n}
too loud, set it to {n}
can I have the volume at {n}?
can we have the volume at {n}?
could we have the sound at {n}?
let the volume be {n}
""",
    "pause": """
stop music
stop the playback
stop playback
stop playing music
stop playing the music
stop the audio
stop the sound
stop this song
stop that song
stop the track
stop this track
stop this music
stop that music
stop the tunes
stop the player
stop the music player
pause music
pause playback
pause the playback
pause the song
pause this song
pause the track
pause the player
pause the tunes
pause what is playing
pause it
pause that
pause this
pause for a moment
pause playing
halt the music
halt playback
halt the song
cut the music
cut the sound
cut the song
end the music
end the song
end playback
end this song
quit the music
quit playing
silence the music
silence the speaker
hold the music
hush the music
mute the music
kill the music
interrupt the music
shut off the music
shut the music off
shut up the music
switch off the music
switch the music off
switch off the song
turn the music off
turn off the song
turn off the playback
turn off that music
turn that music off
turn that song off
turn off this song
turn the song off
turn the tunes off
put the music on pause
put the song on pause
put the music on hold
put an end to the music
make it stop playing
make the song stop
make the music pause
get rid of the music
let the music stop
let the music pause
have the music stop
music stop
music pause
music off now
no music
no music now
no more music
no more songs
no more tunes
enough music
enough music for now
enough of this music
enough of that song
enough of the music
that's enough music
that is enough music
the music off
the music should stop
the song should stop
quiet, no music
silence please
silence
quiet please
I want silence
I want the music off
I want the music to stop
I want no more music
I need silence
I need the music to stop
I need the music off
I'd like the music off
I'd like silence
I'd like you to pause the song
I don't want to hear this any more
I don't want music now
I don't want any more music
I have heard enough music
we don't need music now
we need quiet, stop the music
can we have the music off?
can we have some silence?
can I have silence?
can the music stop?
could we have it quiet, without music?
would you pause the song?
""",
    "list": """
add {item} to the list
add {item} to my shopping list
add {item} to our shopping list
add {item} to our list
add {item} to the shopping
add {item} to the groceries
add {item} to the grocery list
add {item} to my groceries
add some {item} to the shopping list
add some {item} to the list
add some {item}
add {item}
add {item} on the list
add {item} on my shopping list
add also {item} to the list
append {item} to the list
append {item} to the shopping list
put {item} on my shopping list
put {item} on our list
put {item} on our shopping list
put {item} on the grocery list
put {item} down on the list
put {item} down for shopping
put {item} onto the list
put {item} onto the shopping list
put {item} in my list
put some {item} on the list
put some {item} on the shopping list
put down {item}
put down {item} on the list
pop {item} on the list
pop {item} on the shopping list
stick {item} on the list
stick {item} on my shopping list
throw {item} on the list
get {item} on the shopping list
get {item} onto my list
include {item} on the list
include {item} in the shopping list
insert {item} into the shopping list
enter {item} in the shopping list
enter {item} on the list
save {item} to the shopping list
save {item} on my list
write {item} on the list
write {item} down
write down {item}
write down {item} for shopping
write {item} on my shopping list
write {item} onto the list
note down {item}
note {item} on the list
note {item} on the shopping list
jot down {item}
jot {item} down on the list
jot down {item} for the shop
make a note to buy {item}
make a note that we need {item}
record {item} on the shopping list
buy some {item}
buy more {item}
order {item} on the shopping list
remember to buy {item}
remember {item} for the shopping
remember {item} for the list
don't forget {item} on the list
don't forget {item} for the shopping
don't forget to buy {item}
don't let us forget {item}
make sure {item} is on the list
make sure we buy {item}
have {item} on the list
{item} on the list
{item} on the shopping list
{item} for the list
{item} for the shopping list
{item} to the list
{item} to the shopping list
{item} to my list
{item} onto the list
{item} is missing from the list
{item} is missing
{item} must be on the list
{item} should be on the list
{item} should go on the list
{item} needs to be on the list
{item} goes on the list
list: {item}
my list: {item}
shopping: {item}
groceries: {item}
shopping list, {item}
shopping list plus {item}
to the list: {item}
for the list: {item}
for the shopping list: {item}
on the list: {item}
on the shopping list: {item}
also need {item}
need {item}
need some {item}
need more {item}
out of {item}
no more {item}
no {item} left
we need some {item}
we need more {item}
we need to buy {item}
we need to get {item}
we still need {item}
we are out of {item} again
we're out of {item}
we are running out of {item}
we're running low on {item}
we are low on {item}
we have no more {item}
we don't have any {item}
we don't have {item} any more
we used the last {item}
we should buy {item}
we should get {item}
we must buy {item}
we have to buy {item}
we want {item}
we could use some {item}
there is no {item} left
there's no more {item}
there is no {item} in the house
I need {item}
I need some {item}
I need {item} on the list
I need {item} from the shop
I need to get {item}
I need to get some {item}
I have to buy {item}
I have to get {item}
I must buy {item}
I must get some {item}
I should buy {item}
I want to buy {item}
I want {item} on the list
I want {item} on my shopping list
I'd like {item} on the list
I'd like to add {item} to the list
I would like to put {item} on the list
I am out of {item}
I'm out of {item}
I ran out of {item}
I've run out of {item}
I finished the {item}
I used up the {item}
I have no {item}
I have no {item} left
I have no more {item}
I forgot {item} on the list
the {item} is finished
the {item} is empty
the {item} is gone
the last {item} is gone
can I have {item} on the list?
can we get {item}?
can we have {item} on the list?
could we get some {item} on the list?
could I have {item} on my list?
is {item} on the list? if not, add it
next time we shop, {item}
when we go shopping we need {item}
""",
    "remind": """
remind me at {time} to {text}
remind me at {time} that I have to {text}
remind me at {time} that I must {text}
remind me to {text} by {time}
remind me that I need to {text} at {time}
remind me that I have to {text} at {time}
remind me I have to {text} at {time}
remind me around {time} to {text}
remind us to {text} at {time}
remind us at {time} to {text}
set a reminder for {time} to {text}
set a reminder at {time} to {text}
set a reminder for {time}: {text}
set a reminder: {text} at {time}
set a reminder for me to {text} at {time}
set me a reminder to {text} at {time}
set me a reminder for {time} to {text}
set up a reminder to {text} at {time}
set up a reminder for {time} to {text}
set reminder {time} {text}
create a reminder to {text} at {time}
create a reminder for {time} to {text}
create a reminder: {text} at {time}
add a reminder to {text} at {time}
add a reminder for {time} to {text}
add a reminder at {time}: {text}
make a reminder to {text} at {time}
make me a reminder to {text} at {time}
make a note to {text} at {time}
make sure I {text} at {time}
make sure that I {text} at {time}
make sure I don't forget to {text} at {time}
give me a reminder to {text} at {time}
give me a reminder at {time} to {text}
give me a nudge at {time} to {text}
give me a shout at {time} to {text}
schedule a reminder to {text} at {time}
schedule a reminder for {time} to {text}
put in a reminder to {text} at {time}
put a reminder at {time} to {text}
put down a reminder for {time} to {text}
save a reminder to {text} at {time}
leave me a reminder to {text} at {time}
note that I have to {text} at {time}, and remind me
nudge me at {time} to {text}
nudge me to {text} at {time}
prompt me at {time} to {text}
prompt me to {text} at {time}
ping me at {time} to {text}
alert me at {time} to {text}
notify me at {time} to {text}
notify me to {text} at {time}
warn me at {time} to {text}
tell me at {time} to {text}
tell me at {time} that I have to {text}
tell me to {text} when it is {time}
let me know at {time} to {text}
let me know at {time} that I should {text}
let me know when it is {time}, I have to {text}
help me remember to {text} at {time}
help me to remember to {text} at {time}
don't let me forget at {time} to {text}
do not let me forget to {text} at {time}
don't forget to remind me to {text} at {time}
new reminder at {time}: {text}
new reminder for {time}: {text}
new reminder: {text} at {time}
reminder: {text} at {time}
reminder: at {time} {text}
reminder to {text} at {time}
reminder for {time}: {text}
reminder for {time} to {text}
reminder at {time} to {text}
reminder {time}: {text}
reminder {time} {text}
a reminder to {text} at {time}
a reminder for {time} to {text}
a reminder at {time}: {text}
{time} reminder: {text}
{time} reminder to {text}
{time}: remind me to {text}
{text} at {time}, remind me
{text} at {time}, don't let me forget
to {text} at {time}, set a reminder
at {time} I have to {text}, remind me
at {time} I need to {text}, remind me
at {time} I must {text}, don't let me forget
at {time} I should be reminded to {text}
at {time} tell me to {text}
at {time}, remind me to {text}
at {time} nudge me to {text}
when it is {time}, remind me to {text}
when it is {time} tell me to {text}
I want to {text} at {time}, remind me
I want to be reminded to {text} at {time}
I want to be reminded at {time} to {text}
I want a reminder to {text} at {time}
I'd like to be reminded to {text} at {time}
I'd like a reminder to {text} at {time}
I'd like a reminder at {time} to {text}
I would like a reminder for {time} to {text}
I would like to be reminded at {time} to {text}
I need a reminder to {text} at {time}
I need a reminder at {time} to {text}
I need a reminder for {time} to {text}
I need to be reminded to {text} at {time}
I need reminding to {text} at {time}
I have to {text} at {time}, remind me
I have to {text} at {time}, don't let me forget
I must {text} at {time}, please remind me
I must not forget to {text} at {time}
I should {text} at {time}, remind me
I always forget to {text}, remind me at {time}
can I have a reminder to {text} at {time}?
can I get a reminder to {text} at {time}?
can I get a reminder at {time} to {text}?
could I have a reminder for {time} to {text}?
could I be reminded to {text} at {time}?
may I have a reminder to {text} at {time}?
""",
    "weather": """
what's the weather in {city}?
what's the weather today in {city}?
what's the weather in {city} today?
what's the weather in {city} like?
what's the weather doing in {city}?
what's the weather forecast for {city}?
what's the forecast for {city}?
what's the forecast in {city}?
what's the temperature in {city}?
what's it like outside in {city}?
what's it like in {city} today, weather-wise?
what is the weather like in {city}?
what is the weather today in {city}?
what is the weather in {city} today?
what is the weather doing in {city}?
what is the weather for {city}?
what is the weather forecast for {city}?
what is the forecast for {city}?
what is the forecast in {city}?
what is the temperature in {city}?
what is the temperature outside in {city}?
what weather do they have in {city}?
what weather is it in {city}?
what kind of weather is there in {city}?
what kind of weather do they have in {city}?
what sort of weather does {city} have?
what will the weather be like in {city}?
what will the weather be like in {city} today?
what does the weather look like in {city}?
what does the forecast say for {city}?
what does the sky look like in {city}?
what temperature is it in {city}?
what temperature does {city} have?
what about the weather in {city}?
how's the weather in {city}?
how's the weather in {city} today?
how's the weather over in {city}?
how is the weather today in {city}?
how is the weather in {city} today?
how is the weather over in {city}?
how is it outside in {city}?
how does the weather look in {city}?
how does it look in {city}, weather-wise?
how hot is it in {city}?
how hot is it in {city} today?
how cold is it in {city}?
how cold is it outside in {city}?
how warm is it in {city} today?
how windy is it in {city}?
how many degrees are there in {city}?
how many degrees is it in {city}?
how many degrees in {city}?
is it sunny in {city}?
is it sunny in {city} today?
is it hot in {city}?
is it warm in {city}?
is it windy in {city}?
is it snowing in {city}?
is it cloudy in {city}?
is it foggy in {city}?
is it cold in {city} today?
is it raining in {city} today?
is it wet in {city}?
is it dry in {city}?
is it nice in {city} today?
is it freezing in {city}?
is it stormy in {city}?
is there rain in {city}?
is there snow in {city}?
is there a storm in {city}?
is there sunshine in {city}?
is the weather good in {city}?
is the weather nice in {city}?
is the weather bad in {city}?
is the weather fine in {city} today?
is {city} sunny?
is {city} cold today?
are there clouds in {city}?
are there any storms in {city}?
will it be sunny in {city}?
will it be warm in {city}?
will it be cold in {city}?
will it be hot in {city} today?
will it snow in {city}?
will it rain in {city} today?
will it be dry in {city}?
will it storm in {city}?
will there be rain in {city}?
will there be snow in {city}?
will the sun shine in {city}?
will I need an umbrella in {city}?
will I need a coat in {city}?
do I need a coat in {city}?
do I need a jacket in {city}?
do I need a raincoat in {city}?
do I need an umbrella today in {city}?
do I need sunglasses in {city}?
do you know the weather in {city}?
do you know how the weather is in {city}?
do you know what the weather is like in {city}?
do you have the weather for {city}?
do they have rain in {city}?
does it rain in {city}?
does it snow in {city}?
does it look like rain in {city}?
does {city} have good weather?
should I take an umbrella in {city}?
should I bring a coat to {city}?
should I wear a coat in {city}?
should I pack an umbrella for {city}?
can I go without a jacket in {city}?
can I have the weather for {city}?
can I get the weather in {city}?
can I get the forecast for {city}?
could I have the forecast for {city}?
may I have the weather for {city}?
tell me the weather for {city}
tell me the forecast for {city}
tell me about the weather in {city}
tell me what the weather is like in {city}
tell me how the weather is in {city}
tell me how warm it is in {city}
tell me the temperature in {city}
tell me if it rains in {city}
tell me whether it is raining in {city}
give me the weather in {city}
give me the weather for {city}
give me the weather report for {city}
give me the weather forecast for {city}
give me a weather report for {city}
give me the forecast in {city}
give me the temperature in {city}
get me the weather for {city}
get the weather for {city}
get the weather in {city}
get the forecast for {city}
check the weather in {city}
check the weather for {city}
check the forecast for {city}
check if it rains in {city}
check whether it is raining in {city}
show me the weather in {city}
show me the weather for {city}
show me the forecast for {city}
show the weather in {city}
read me the weather for {city}
read out the forecast for {city}
look up the weather in {city}
look up the forecast for {city}
look up the weather for {city}
find out the weather in {city}
find the weather for {city}
fetch the weather for {city}
let me know the weather in {city}
let me know what the weather is like in {city}
weather {city}
weather: {city}
weather, {city}
weather for {city}
weather at {city}
weather today in {city}
weather in {city} today
weather now in {city}
weather report {city}
weather report for {city}
weather forecast {city}
weather forecast for {city}
weather forecast in {city}
weather conditions in {city}
current weather in {city}
current weather {city}
today's weather in {city}
temperature in {city}
temperature {city}
forecast {city}
forecast for {city}
forecast in {city}
{city} weather
{city} weather today
{city} forecast
{city} temperature
the weather in {city}
the weather for {city}
the weather in {city} please
the forecast for {city}
the temperature in {city}
any rain in {city}?
any snow in {city}?
any sun in {city}?
rain in {city}?
snow in {city}?
sunny in {city}?
I need the weather for {city}
I need the forecast for {city}
I need to know the weather in {city}
I want to know the weather in {city}
I want the weather for {city}
I want to know if it rains in {city}
I want to know how warm it is in {city}
I'd like to know the weather in {city}
I'd like the weather for {city}
I'd like the forecast for {city}
I would like to know the weather in {city}
I would like to know how the weather is in {city}
I wonder how the weather is in {city}
I wonder if it is raining in {city}
I am going to {city}, what is the weather?
I am travelling to {city}, how is the weather there?
I'm flying to {city}, what's the weather like there?
we are going to {city}, is it warm there?
""",
    "blinds": """
{state} the blinds of the {room}
{state} blinds in the {room}
{state} the {room} shutters
{state} the {room} shutter
{state} the {room} curtains
{state} the {room} blind
{state} the {room} shades
{state} the shutters in the {room}
{state} the shutter in the {room}
{state} the shades in the {room}
{state} the roller blinds in the {room}
{state} the window blinds in the {room}
{state} the blind in the {room}
{state} the drapes in the {room}
{state} all the blinds in the {room}
{state} all the shutters in the {room}
{state} every blind in the {room}
{state} my {room} blinds
{state} our {room} blinds
{state} {room} blinds
{state} {room} shutters
{state} {room} curtains
{state} up the {room} blinds
{state} up the blinds in the {room}
let the blinds {state} in the {room}
let the {room} blinds {state}
let the shutters in the {room} {state}
make the blinds in the {room} {state}
make the {room} blinds {state}
make the {room} shutters {state}
have the blinds in the {room} {state}
have the {room} curtains {state}
get the {room} blinds to {state}
get the blinds in the {room} to {state}
set the blinds in the {room} to {state}
set the {room} blinds to {state}
set the {room} shutters to {state}
set {room} blinds to {state}
switch the {room} blinds to {state}
put the {room} blinds to {state}
move the {room} blinds to {state}
move the blinds in the {room} to {state}
tell the {room} blinds to {state}
tell the shutters in the {room} to {state}
in the {room} {state} the blinds
in the {room} {state} the curtains
in the {room}, {state} the shutters
in the {room}, {state} the curtains
in the {room}, blinds {state}
{room} blinds {state}
{room} blinds: {state}
{room} blinds to {state}
{room} shutters {state}
{room} shutters, {state}
{room} curtains {state}
{room} curtains, {state}
{room}: {state} the blinds
{room}: blinds {state}
{room}, {state} the blinds
{room}, {state} the shutters
blinds {state} in the {room}
blinds {state} {room}
blinds {state}, {room}
blinds in the {room}: {state}
blinds in the {room}, {state}
blinds in the {room} {state}
shutters {state} in the {room}
shutters in the {room}: {state}
curtains {state} in the {room}
curtains in the {room}, {state}
the blinds in the {room}, {state} them
the {room} blinds, {state} them
the shutters in the {room}, {state} them
the {room} blinds should {state}
the blinds in the {room} should {state}
the shutters in the {room} should {state}
the {room} curtains should {state}
the blinds in the {room} have to {state}
the {room} blinds must {state}
the {room} shutters need to {state}
I want to {state} the blinds in the {room}
I want to {state} the {room} blinds
I want to {state} the curtains in the {room}
I want the {room} blinds to {state}
I want the blinds in the {room} to {state}
I need to {state} the {room} blinds
I need to {state} the blinds in the {room}
I need the {room} blinds to {state}
I need you to {state} the {room} shutters
I'd like to {state} the {room} blinds
I'd like to {state} the shutters in the {room}
I'd like the {room} blinds to {state}
I would like to {state} the blinds in the {room}
I would like you to {state} the {room} curtains
we want to {state} the blinds in the {room}
we need to {state} the {room} blinds
time to {state} the {room} blinds
time to {state} the blinds in the {room}
it is time to {state} the shutters in the {room}
let's {state} the blinds in the {room}
let's {state} the {room} curtains
go and {state} the blinds in the {room}
can we {state} the {room} blinds?
can I {state} the blinds in the {room}?
could we {state} the curtains in the {room}?
help me {state} the {room} blinds
""",
    "call": """
call up {name}
call {name} up
call {name} now
call {name} for me
call my friend {name}
call my colleague {name}
call {name} on the phone
call {name} on his phone
call {name} on her phone
call {name} at home
call {name} back
phone up {name}
phone {name} up
phone {name} for me
phone my friend {name}
phone {name} back
ring up {name}
ring {name} up
ring {name} for me
ring {name} back
ring my friend {name}
ring {name} on the phone
dial {name} for me
dial {name} on the phone
dial the number of {name}
dial {name}'s number
telephone {name}
give {name} a ring
give {name} a buzz
give {name} a phone call
give {name} a quick call
give my friend {name} a call
make a phone call to {name}
make a quick call to {name}
make me a call to {name}
place a call to {name}
place a phone call to {name}
start a phone call with {name}
start a call to {name}
begin a call with {name}
open a call with {name}
connect me to {name}
connect me with {name}
connect a call to {name}
put me through to {name}
put {name} on the phone
put {name} on the line
put a call through to {name}
patch me through to {name}
reach {name}
reach {name} by phone
reach out to {name} by phone
try to reach {name}
try calling {name}
try {name} on the phone
get me {name}
get me {name} on the phone
get me {name} on the line
get {name} on the line
get hold of {name} by phone
get in touch with {name} by phone
get through to {name}
contact {name}
contact {name} by phone
speak to {name} on the phone
talk to {name} on the phone
hook me up with {name} on the phone
buzz {name}
let me talk to {name}
let me speak to {name}
let me speak with {name}
let me call {name}
let's call {name}
let's phone {name}
let's ring {name}
a call to {name}
a phone call to {name}
call: {name}
call to {name}
phone: {name}
phone call to {name}
phone call with {name}
new call to {name}
{name} on the phone
{name} on the phone please
{name}, call please
I want to call {name}
I want to phone {name}
I want to ring {name}
I want to speak to {name}
I want to speak with {name}
I want to talk with {name}
I want to reach {name}
I need to call {name}
I need to phone {name}
I need to ring {name}
I need to talk to {name}
I need to speak to {name}
I need to speak with {name}
I need to reach {name}
I need {name} on the phone
I have to call {name}
I have to phone {name}
I have to talk to {name}
I have to speak to {name}
I must call {name}
I must speak to {name}
I should call {name}
I should ring {name}
I'd like to call {name}
I'd like to talk to {name}
I'd like to speak to {name}
I'd like to speak with {name}
I'd like to ring {name}
I would like to call {name}
I would like to talk to {name}
I would like to speak to {name}
I would like to phone {name}
we want to call {name}
we need to call {name}
we should phone {name}
can I talk to {name}?
can I speak to {name}?
can I call {name}?
can I speak with {name}?
can I reach {name}?
can we call {name}?
could I talk to {name}?
could I speak to {name}?
could we phone {name}?
may I speak to {name}?
may I talk to {name}?
may I call {name}?
time to call {name}
""",
    "clock": """
what's the time now?
what's the time right now?
what's the time please?
what's the current time?
what's the exact time?
what's the time of day?
what's the hour?
what's the clock say?
what is the time?
what is the current time?
what is the exact time?
what is the time right now?
what is the time please?
what is the hour?
what is the time at the moment?
what is the time here?
what time is it now?
what time is it right now?
what time is it please?
what time is it here?
what time is it at the moment?
what time is it exactly?
what time do you have?
what time have you got?
what time is now?
what time are we at?
what hour is it?
what hour do we have?
what does the clock show?
what do the clocks say?
how late is it now?
how late is it right now?
how late is it already?
how late do we have?
how late are we?
is it late?
is it noon yet?
is it midnight yet?
do you have the time?
do you have the current time?
do you know what time it is?
do you know how late it is?
do you know the hour?
do you know the current time?
have you got the time?
got the time?
tell me what time it is
tell me what the time is
tell me the current time
tell me the exact time
tell me the hour
tell me how late it is
tell me what the clock says
tell us the time
tell the time
say the time
say what time it is
give me the time
give me the current time
give me the exact time
give me the hour
give us the time
show me the time
show me the clock
show the time
show the clock
show the current time
check the time
check the clock
check what time it is
check the current time
read the clock
read me the clock
read me the time
read out the time
announce the time
get the time
get me the time
get the current time
look at the clock
look at the clock for me
look up the time
find out what time it is
find out the time
let me know the time
let me know what time it is
let me know how late it is
time
time?
time please
time now
time now?
time now please
time check
time right now
time check please
the time?
the time now
the current time
the current time please
the exact time please
the hour please
clock
clock please
clock time
current time
current time?
exact time please
I need the time
I need to know the time
I need to know what time it is
I need the current time
I need the exact time
I want to know the time
I want to know what time it is
I want the time
I want to know how late it is
I'd like to know the time
I'd like to know what time it is
I'd like the time
I would like to know the time
I would like to know what time it is
I wonder what time it is
I don't know what time it is
I don't know how late it is
I have no watch, what time is it?
I forgot my watch, what is the time?
my watch has stopped, what time is it?
my watch is broken, what's the time?
we need to know the time
can I have the time?
can I get the time?
can I know the time?
can I ask what time it is?
could I have the time?
could I know the time?
could I ask you for the time?
may I ask the time?
may I know the time?
may I ask what time it is?
may I have the time?
any idea what time it is?
any idea how late it is?
excuse me, the time?
""",
}

AMENDS: dict[str, str] = {
    "timer": """
and {n} minutes
and another for {n} minutes
and another {n} minutes
and a second one for {n} minutes
also one for {n} minutes
also {n} minutes
one more for {n} minutes
one more, {n} minutes
make it {n}
make it {n} minutes instead
make that {n} minutes
make the timer {n} minutes
change that to {n} minutes
change the timer to {n} minutes
change it to {n}
set it to {n} minutes
set it to {n} minutes instead
set that to {n} minutes
no, make it {n} minutes
no, make that {n} minutes
no, I meant {n} minutes
no wait, {n} minutes
wait, {n} minutes
wait, make it {n} minutes
sorry, {n} minutes
sorry, I meant {n} minutes
oh, make it {n} minutes
I meant {n} minutes
I mean {n} minutes
rather {n} minutes
{n} minutes instead
{n} minutes would be better
{n} would be better
actually {n}
actually make it {n} minutes
actually, {n} minutes
ok, and {n} minutes
now one for {n} minutes
then one for {n} minutes
""",
    "alarm": """
and at {time}
and one at {time}
and one for {time}
and another at {time}
and another for {time}
also at {time}
also one at {time}
another one at {time}
another at {time}
one more at {time}
make it {time} instead
make that {time}
make the alarm {time}
change that to {time}
change the alarm to {time}
change it to {time} instead
set it to {time}
set it for {time}
set it to {time} instead
move it to {time}
no, make it {time}
no, make that {time}
no, at {time}
no, I meant {time}
no wait, {time}
wait, {time}
wait, make it {time}
sorry, {time}
sorry, I meant {time}
oh, make it {time}
I meant {time}
I mean {time}
rather {time}
rather at {time}
{time} instead
{time} would be better
better {time}
better at {time}
actually {time}
actually make it {time}
actually, {time}
now one for {time}
then one for {time}
""",
    "light": """
and now the {room}
and now in the {room}
and then the {room}
and for the {room}
and the light in the {room}
and the {room} light
and the {room} light too
and the {room} as well
and in the {room} too
and in the {room} as well
and in the {room} please
and do the {room} too
and what about the {room}?
also the {room}
also the {room} light
also for the {room}
also in the {room} please
now in the {room}
now do the {room}
now the {room} light
then the {room}
next the {room}
next, the {room}
the {room} too
the {room} as well
the {room} too please
the same for the {room}
same in the {room}
same for the {room}
same thing in the {room}
same with the {room}
do that in the {room} too
do the {room} too
do the {room} as well
do it in the {room} as well
do the same for the {room}
in the {room} too
in the {room} as well
what about the {room}?
how about the {room}?
ok, and the {room}
ok now the {room}
thanks, and the {room}
plus the {room}
""",
    "dim": """
no, {n} percent
no, make it {n} percent
no, I meant {n} percent
make that {n} percent
make it {n} percent instead
make it {n}
make it {n} percent bright
set it to {n} percent
set that to {n} percent
set it to {n} percent instead
change that to {n} percent
change it to {n}
turn it to {n} percent
put it at {n} percent
put it to {n} percent
bring it to {n} percent
dim it to {n} percent
only {n} percent
{n} percent instead
{n} percent would be better
{n} percent is better
actually {n} percent
actually make it {n} percent
rather {n} percent
sorry, {n} percent
sorry, I meant {n} percent
I meant {n} percent
wait, {n} percent
oh, make it {n} percent
ok, now {n} percent
and now {n} percent
then {n} percent
a bit more, {n} percent
a bit less, {n} percent
brighter, {n} percent
darker, {n} percent
""",
    "colour": """
and now {colour}
and then {colour}
ok, now {colour}
now make it {colour}
then {colour}
make that {colour}
make it {colour} instead
make it {colour} please
no, make it {colour}
no, I meant {colour}
no wait, {colour}
wait, {colour}
set it to {colour}
set that to {colour}
set it to {colour} instead
change that to {colour}
change it to {colour} instead
change the colour to {colour}
turn it {colour}
turn it to {colour}
switch it to {colour}
switch to {colour}
put it to {colour}
{colour} instead
{colour} would be better
{colour} would be nicer
{colour} is better
actually {colour}
actually make it {colour}
rather {colour}
rather in {colour}
sorry, {colour}
sorry, I meant {colour}
I meant {colour}
I prefer {colour}
I'd prefer {colour}
try {colour}
let's try {colour}
how about {colour}?
what about {colour}?
oh, make it {colour}
""",
    "heating": """
no, {n} degrees
no, make it {n} degrees
no, make it {n}
no, I meant {n} degrees
make that {n} degrees
make it {n}
make it {n} degrees instead
set it to {n} degrees
set it to {n}
set that to {n} degrees
change that to {n} degrees
change it to {n}
turn it to {n} degrees
turn it up to {n} degrees
turn it down to {n} degrees
put it at {n} degrees
put it to {n}
bring it to {n} degrees
only {n} degrees
{n} degrees instead
{n} degrees would be better
{n} degrees is better
{n} is better
actually {n} degrees
actually {n}
actually make it {n} degrees
rather {n} degrees
sorry, {n} degrees
sorry, I meant {n} degrees
I meant {n} degrees
wait, {n} degrees
oh, make it {n} degrees
and now {n} degrees
now {n} degrees
warmer, {n} degrees
cooler, {n} degrees
a bit more, {n} degrees
a bit less, {n} degrees
""",
    "music": """
and then {what}
and after that {what}
and {what}
then {what}
then play {what}
next {what}
next, {what}
next play {what}
now {what}
now some {what}
now something by {what}
ok, now {what}
ok, and now {what}
no, play {what}
no, I meant {what}
no wait, {what}
wait, {what}
{what} instead
change it to {what}
change that to {what}
switch to {what}
switch over to {what}
make it {what}
make that {what}
put on {what} instead
put {what} on instead
I meant {what}
I mean {what}
I'd prefer {what}
I'd rather hear {what}
I'd rather have {what}
I prefer {what}
rather {what}
rather play {what}
actually {what}
actually, play {what}
actually play {what}
sorry, {what}
sorry, I meant {what}
how about {what}?
what about {what}?
let's hear {what} instead
let me hear {what} instead
try {what}
maybe {what}
and how about {what}?
""",
    "volume": """
no, make it {n}
no, I meant {n}
no, to {n}
make that {n}
make it {n} instead
make it {n} please
set it to {n}
set that to {n}
set it at {n}
set it to {n} instead
change that to {n}
turn it to {n}
turn it up to {n}
turn it down to {n}
turn that to {n}
put it at {n}
put it to {n}
put it on {n}
bring it to {n}
only {n}
to {n} instead
{n} instead
{n} would be better
{n} is better
actually {n}
actually make it {n}
actually, {n}
rather {n}
sorry, {n}
sorry, I meant {n}
I meant {n}
wait, {n}
oh, make it {n}
and now {n}
ok, now {n}
louder, {n}
quieter, {n}
a bit louder, {n}
a bit quieter, {n}
up to {n}
down to {n}
""",
    "list": """
and add {item}
and add {item} too
and {item} as well
and {item} please
and then {item}
and now {item}
and put {item} on it
and put {item} on it too
and we need {item}
and we need {item} too
and I need {item}
and more {item}
also add {item}
also put {item} on it
also {item} please
also some {item}
also we need {item}
add {item} too
add {item}
add {item} please
add some {item} too
put {item} on it as well
put {item} on it too
put {item} there too
{item} too
{item} as well
{item} too please
oh and {item}
oh, and {item}
oh, and {item} too
plus some {item}
ok, and {item}
then {item}
then add {item}
next {item}
now {item}
now add {item}
one more thing, {item}
one more: {item}
the same for {item}
same for {item}
thanks, and {item}
we need {item} too
we need {item} as well
I need {item} too
I also need {item}
don't forget {item}
""",
    "remind": """
make it {time} instead
make that {time}
no, make it {time}
no, I meant {time}
no, {time}
no wait, {time}
wait, {time}
set it to {time}
set it for {time}
change that to {time}
change it to {time} instead
move it to {time}
rather at {time}
rather {time}
{time} instead
at {time} instead
{time} would be better
better at {time}
better {time}
actually {time}
actually make it {time}
actually, at {time}
sorry, {time}
sorry, at {time}
sorry, I meant {time}
I meant {time}
I meant at {time}
oh, make it {time}
please make it {time}
can you make it {time}?
""",
    "weather": """
and now {city}
and {city} please
and the weather in {city}?
and the weather for {city}?
and how is it in {city}?
and what about {city}?
and how about {city}?
and what is it like in {city}?
and what's it like in {city}?
and today in {city}?
and over in {city}?
also for {city}
also in {city}
also {city} please
what about in {city}?
what about the weather in {city}?
how about in {city}?
how is it in {city}?
how is it there in {city}?
now {city}
now in {city}
then {city}
next {city}
in {city}?
and in {city} then?
the same for {city}
same for {city}
same for {city} please
same question for {city}
ok, {city}?
ok, and {city}?
ok and in {city}?
thanks, and in {city}?
thanks, and {city}?
check {city} too
check {city} as well
do {city} too
{city} too
{city} as well
and is it the same in {city}?
I meant {city}
no, {city}
no, in {city}
no, I meant {city}
sorry, {city}
""",
    "blinds": """
and now the {room}
and now in the {room}
and then the {room}
and for the {room}
and the {room} blinds
and the {room} blinds too
and the {room} as well
and the {room}
and in the {room} too
and in the {room} as well
and do the {room} too
also the {room}
also the {room} blinds
also for the {room}
now in the {room}
now do the {room}
then the {room}
next the {room}
the {room} too
the {room} as well
the same for the {room}
same in the {room}
same for the {room}
same thing in the {room}
do that in the {room} too
do the {room} too
do the {room} as well
do the same in the {room}
do the same for the {room}
in the {room} too
in the {room} as well
what about the {room}?
how about the {room}?
ok, and the {room}
ok now the {room}
plus the {room}
""",
    "call": """
and call {name}
and now call {name}
and call {name} too
and then call {name}
and after that {name}
and {name} too
and {name} as well
also {name}
also call {name}
now call {name}
now {name}
then call {name}
then try {name}
next {name}
next call {name}
next, {name}
no, call {name}
no, I meant {name}
no wait, {name}
wait, {name}
{name} instead
try {name} instead
try {name}
make it {name}
make that {name}
I meant {name}
I mean {name}
actually {name}
actually, call {name}
actually call {name}
rather {name}
sorry, {name}
sorry, I meant {name}
what about {name}?
how about {name}?
ok, now {name}
ok, and {name}
better {name}
better call {name}
""",
}
