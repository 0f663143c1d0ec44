# The pipe to the keychain: whatever comes through it, and however it breaks, the program lives on and knows what it knows.

use strict;
use warnings;

use lib 't/lib';
use File::Temp ();
use Test::More;
use Time::HiRes ();

use Leasehold;
use TestServer qw(program);

# Processes that speak as a keychain does, and then do what one does only by an accident. Each is a Perl program.
my $FOLDER = File::Temp->newdir;

sub keychain {
    my ( $name, $code ) = @_;
    open my $file, '>', "$FOLDER/$name" or die "open: $!";
    print {$file} "#!$^X\nuse strict; use warnings; \$| = 1;\n$code";
    close $file;
    chmod 0755, "$FOLDER/$name";
    return "$FOLDER/$name";
}

# Its answers come in the middle of long events, so that the signal for one line meets the program in the line before.
my $TALKATIVE = keychain( talkative => <<'KEYCHAIN' );
my $long = join q{,}, map {qq("$_")} 1 .. 400;
while ( my $line = <STDIN> ) {
    my ($id) = $line =~ m/"id":(\d+)/ or next;
    print qq({"event":"waiting","resource":"r","position":$_,"holder":[$long]}\n) for 1 .. 10;
    print qq({"id":$id,"ok":true,"pid":$$,"asked":$id}\n);
    print qq({"event":"waiting","resource":"r","position":$_,"holder":[$long]}\n) for 11 .. 20;
}
KEYCHAIN

# Answers its first request, and dies in the middle of the second answer.
my $CUT = keychain( cut => <<'KEYCHAIN' );
<STDIN>;
print qq({"id":1,"ok":true,"pid":$$}\n);
<STDIN>;
print qq({"id":2,"ok":true,"pid":);
kill KILL => $$;
KEYCHAIN

# Answers its first request and reads no other; it seems to live on until the program has ended.
my $DEAF = keychain( deaf => <<'KEYCHAIN' );
<STDIN>;
close STDIN;
print qq({"id":1,"ok":true,"pid":$$}\n);
my ($parent) = "@ARGV" =~ m/--parent (\d+)/;
select undef, undef, undef, 0.02 while kill 0 => $parent;
KEYCHAIN

sub manager {
    my ($command) = @_;
    return Leasehold::LockManager->new( url => 'http://127.0.0.1:1', command => $command );
}

subtest 'a line that comes while another is taken in disturbs neither' => sub {
    my $manager = manager($TALKATIVE);
    my $answers = 0;
    for my $round ( 1 .. 10 ) {
        my $answer = eval { $manager->ping };
        is $@, q{}, "round $round";
        $answers++ if $answer && $answer->{asked} == $round + 1;
    }
    is $answers, 10, 'every request has its own answer';
};

subtest 'a handler that asks while an answer is taken in disturbs nothing' => sub {
    my $manager = manager($TALKATIVE);
    my ( $asked, @failures ) = (0);
    local $SIG{ALRM} = sub { $asked++; eval { $manager->ping; 1 } or push @failures, $@ };
    Time::HiRes::setitimer( Time::HiRes::ITIMER_REAL(), 0.01, 0.01 );
    for ( 1 .. 200 ) {
        last if $asked >= 5;
        eval { $manager->ping; 1 } or push @failures, $@;
    }
    Time::HiRes::setitimer( Time::HiRes::ITIMER_REAL(), 0 );
    cmp_ok $asked, '>=', 5;
    is_deeply \@failures, [];
};

subtest 'what a handler throws while an answer is taken in leaves the call' => sub {
    my $manager = manager($TALKATIVE);
    my ( $fired, $thrown, @warnings ) = ( 0, 0 );
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    local $SIG{ALRM}     = sub { $fired++; die "now\n" };
    for my $round ( 1 .. 50 ) {
        eval {
            Time::HiRes::ualarm( 1000 + 200 * $round );
            $manager->ping while $fired < $round;
            1;
        } or $@ eq "now\n" and $thrown++;
    }
    is $fired, 50;
    # In a destructor, where perl throws nothing on, only one that just happens to come then.
    cmp_ok $thrown, '>=', 40, 'it is not lost in a destructor' or diag @warnings;
    ok $manager->ping, 'and nothing is spoilt';
};

subtest 'the beginning of a line of a keychain that was killed is its end' => sub {
    my $manager = manager($CUT);
    is eval { $manager->ping }, undef;
    isa_ok $@, 'Leasehold::Error::KeychainGone';
};

subtest 'a keychain that does not read: no SIGPIPE, not even later' => sub {
    my $program = program( <<'PROGRAM', $DEAF );
my $blocked = POSIX::SigSet->new( POSIX::SIGPIPE() );
for my $is_blocked ( 0, 1 ) {
    my $manager = Leasehold::LockManager->new( url => 'http://127.0.0.1:1', command => $ARGV[0] );
    POSIX::sigprocmask( POSIX::SIG_BLOCK(), $blocked ) if $is_blocked;
    print eval { $manager->ping; 1 } ? 'answered' : ref $@, "\n";
    POSIX::sigprocmask( POSIX::SIG_UNBLOCK(), $blocked );
    print "lives\n";
}
PROGRAM
    for ( 1, 2 ) {
        is $program->line, 'Leasehold::Error::KeychainGone';
        is $program->line, 'lives';
    }
    is $program->end, 'exit 0';
};

done_testing;
